"""The stage of the examples on a test's own database and topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from examples.receiver import Receiver
from examples.stage import HURRIED, ProofError, Stage, StartComponent, make_topics
from tests.support.connector_world import read_committed
from tests.support.program import Outrider, program
from topics.contract import KINDS


@dataclass(frozen=True, kw_only=True)
class StageInProcess(Stage):
    """Commands that are only to be carried out run in the test's process, which is quicker."""

    programs: Mapping[str, Outrider]
    """By login."""

    def outrider(self, *arguments: str, group: str = "operator", check: bool = True) -> str:
        result = self.programs[group](*arguments)
        if check and result.exit_code != 0:
            raise ProofError(f"outrider {' '.join(arguments)}: {result.stderr}")
        return result.stdout


@contextmanager
def stage_of(
    request: pytest.FixtureRequest, component: StartComponent, *, sources: Path, proved: list[str]
) -> Iterator[Stage]:
    """Components start under the test's fixture, which ends them. What is proved goes into ``proved``."""
    settings_values: dict[str, object] = request.getfixturevalue("settings_values")
    role_dsns: dict[str, str] = request.getfixturevalue("role_dsns")
    monkeypatch, capsys = request.getfixturevalue("monkeypatch"), request.getfixturevalue("capsys")
    settings = {**settings_values, **HURRIED, "sources_directory": sources}
    make_topics(settings)
    receiver = Receiver()
    try:
        with psycopg.connect(str(settings["postgres_dsn"]), autocommit=True) as admin:
            yield StageInProcess(
                programs={
                    group: program(monkeypatch, capsys, **{**settings, "postgres_dsn": dsn})
                    for group, dsn in role_dsns.items()
                },
                admin=admin,
                admin_dsn=str(settings["postgres_dsn"]),
                dsns=role_dsns,
                settings=settings,
                start=lambda name, **more: component(name, **{**HURRIED, "sources_directory": sources, **more}),
                receiver=receiver,
                say=proved.append,
            )
    finally:
        receiver.close()


def assert_contracts_hold(settings_values: Mapping[str, object]) -> dict[str, int]:
    """Every record of every topic fits its contract; how many there are, by topic."""
    prefix, servers = settings_values["topic_prefix"], str(settings_values["kafka_bootstrap_servers"])
    return {topic: len(read_committed(servers, f"{prefix}.{topic}")) for topic in KINDS}
