"""The servers in containers are set up like the embedded ones."""

from __future__ import annotations

import pytest

from tests.fixtures.containers import docker_answers, kafka_environment


def test_broker_listens_everywhere_and_announces_the_engines_host() -> None:
    environment = kafka_environment(port=40_000, host="192.0.2.7")
    assert environment["KAFKA_LISTENERS"] == "CLIENTS://0.0.0.0:40000,CONTROLLER://127.0.0.1:9093"
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "CLIENTS://192.0.2.7:40000"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert "KAFKA_LOG_DIRS" not in environment


def test_engine_that_does_not_answer_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    assert not docker_answers()
    monkeypatch.setenv("DOCKER_HOST", "nonsense")
    assert not docker_answers()
