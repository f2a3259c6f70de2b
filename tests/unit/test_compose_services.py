"""docker-compose.yml against the program: every command, port, setting and secret in it must be real.

No engine is needed: the file is read, its commands are parsed by the command tree, its settings by the settings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipeline.cli import build_app
from pipeline.cli.run_commands import Component
from pipeline.cli.settings_commands import unknown_variables
from pipeline.settings import FILE_SUFFIX, PREFIX, Settings, load_settings
from pipeline.stack.login_roles import LOGIN_OF_COMPONENT
from tests.fixtures.containers import KAFKA_IMAGE, POSTGRES_IMAGE

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
LONG_RUNNING = [str(component) for component in Component]
ONE_SHOT = ["migrate", "topics"]
PINNED = re.compile(r"^[a-z0-9./-]+:\d+\.\d+(\.\d+)?([.-][a-z0-9.-]+)?$")


def environment(name: str) -> dict[str, str]:
    return {key: str(value) for key, value in SERVICES[name].get("environment", {}).items()}


def settings_of(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """What the service's program would read; its secrets lie in files here, as compose would mount them."""
    for variable, value in environment(name).items():
        if variable.endswith(FILE_SUFFIX):
            file = tmp_path / Path(value).name
            file.write_text("a secret\n")
            monkeypatch.setenv(variable, str(file))
        else:
            monkeypatch.setenv(variable, value)
    return load_settings()


def test_every_component_of_the_program_has_a_service() -> None:
    assert {name for name in OURS if SERVICES[name]["command"][0] == "run"} == set(LONG_RUNNING)
    assert all(SERVICES[name]["command"] == ["run", name] for name in LONG_RUNNING)
    assert set(OURS) == {*LONG_RUNNING, *ONE_SHOT, "operator"}


@pytest.mark.parametrize("name", OURS)
def test_command_is_one_of_the_programs(name: str) -> None:
    command = typer.main.get_command(build_app())
    arguments = list(SERVICES[name]["command"])
    context = command.make_context("outrider", arguments)
    while hasattr(command, "resolve_command"):
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        # Parses the arguments as a call would, and does not call.
        context = command.make_context(command.name, arguments, parent=context)


@pytest.mark.parametrize("name", OURS)
def test_every_setting_is_one_of_the_programs_and_valid(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert unknown_variables(environment(name)) == []
    assert all(variable.startswith(PREFIX) for variable in environment(name))
    settings_of(name, monkeypatch, tmp_path)  # raises where values are wrong, or do not fit together


@pytest.mark.parametrize("name", OURS)
def test_secrets_come_by_file_and_only_those_that_are_needed(name: str) -> None:
    mounted = {f"/run/secrets/{secret}" for secret in SERVICES[name].get("secrets", [])}
    read = {value for variable, value in environment(name).items() if variable.endswith(FILE_SUFFIX)}
    assert mounted == read
    assert "password=" not in " ".join(environment(name).values())


def test_every_secret_is_declared_and_used() -> None:
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])
    logins = re.search(r"for component in (.+); do", (ROOT / "deploy" / "create-logins.sh").read_text())
    assert logins is not None
    assert used == {f"{component}_password" for component in [*logins[1].split(), "postgres"]}


@pytest.mark.parametrize("name", [*LONG_RUNNING, "operator"])
def test_each_component_connects_as_the_login_of_its_rights(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = LOGIN_OF_COMPONENT.get(name, name)
    conninfo = settings_of(name, monkeypatch, tmp_path).postgres_conninfo
    assert f"user=outrider_{group}_login" in conninfo
    assert environment(name)["OUTRIDER_POSTGRES_PASSWORD_FILE"] == f"/run/secrets/{group}_password"


def test_the_logins_are_of_the_schemas_group_roles() -> None:
    script = (ROOT / "deploy" / "create-logins.sh").read_text()
    made = re.search(r"for component in (.+); do", script)
    assert made is not None
    migrations = "".join(file.read_text() for file in (ROOT / "pipeline/ledger/migrations").glob("*.up.sql"))
    created = re.search(r"foreach wanted in array array\[(.+?)\]", migrations, re.DOTALL)
    assert created is not None
    roles = {
        *re.findall(r"'(outrider_[a-z]+)'", created[1]),
        *re.findall(r"create role (outrider_[a-z]+) ", migrations),
    }
    assert {f"outrider_{component}" for component in made[1].split()} == roles


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_component_waits_for_its_servers_schema_and_topics(name: str) -> None:
    assert SERVICES[name]["depends_on"] == {
        "kafka": {"condition": "service_healthy"},
        "postgres": {"condition": "service_healthy"},
        "migrate": {"condition": "service_completed_successfully"},
        "topics": {"condition": "service_completed_successfully"},
    }


def test_set_up_waits_for_its_server_and_runs_once() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert all(SERVICES[name]["restart"] == "no" for name in ONE_SHOT)


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_health_check_asks_the_port_that_is_set(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = settings_of(name, monkeypatch, tmp_path)
    assert settings.health_port != 0
    assert f"http://127.0.0.1:{settings.health_port}/readyz" in " ".join(SERVICES[name]["healthcheck"]["test"])


def test_published_ports_are_those_that_are_listened_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = settings_of("api", monkeypatch, tmp_path)
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "api": [f"127.0.0.1:{settings.api_port}:{settings.api_port}"],
        "kafka": ["127.0.0.1:29092:29092"],
        "postgres": ["127.0.0.1:5432:5432"],
    }
    assert settings.api_host == "0.0.0.0"
    kafka = environment("kafka")
    assert "HOST://:29092" in kafka["KAFKA_LISTENERS"]
    assert "HOST://127.0.0.1:29092" in kafka["KAFKA_ADVERTISED_LISTENERS"]


def test_kafka_is_reached_by_the_address_that_it_announces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*LONG_RUNNING, "topics"]:
        servers = settings_of(name, monkeypatch, tmp_path).kafka_bootstrap_servers
        assert f"INSIDE://{servers}" in environment("kafka")["KAFKA_ADVERTISED_LISTENERS"].split(",")


def test_postgres_has_logical_replication_and_the_logins_script() -> None:
    assert "wal_level=logical" in SERVICES["postgres"]["command"]
    (script,) = (volume for volume in SERVICES["postgres"]["volumes"] if volume.endswith(":ro"))
    path = ROOT / script.split(":")[0]
    assert path.is_file()
    assert path.stat().st_mode & 0o111


def test_one_broker_holds_one_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = settings_of("topics", monkeypatch, tmp_path)
    assert (settings.topic_replication_factor, settings.topic_min_insync_replicas) == (1, 1)


def test_a_worker_has_time_to_drain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drain_seconds = settings_of("worker", monkeypatch, tmp_path).worker_drain_seconds
    assert int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > drain_seconds
    assert SERVICES["worker"]["deploy"]["replicas"] >= 2


@pytest.mark.parametrize("name", OURS)
def test_our_containers_can_write_nothing_and_gain_nothing(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_every_image_has_a_pinned_tag() -> None:
    images = {service["image"] for service in SERVICES.values()}
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    for image in [*images, *bases]:
        assert PINNED.match(image), image
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"outrider:{version[1]}" in images


def test_the_servers_are_those_that_the_tests_use() -> None:
    assert SERVICES["kafka"]["image"] == KAFKA_IMAGE
    assert (
        SERVICES["postgres"]["image"].startswith(POSTGRES_IMAGE + ".")
        or SERVICES["postgres"]["image"] == POSTGRES_IMAGE
    )


def test_every_volume_is_declared() -> None:
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not volume.startswith(".")
    }
    assert named == set(COMPOSE["volumes"])
