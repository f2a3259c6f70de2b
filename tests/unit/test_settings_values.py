"""What the environment says, and what it must not say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline.settings import PREFIX, SettingsError, environment_of, load_settings
from tests.support.program import Outrider, Result, program


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **settings: object) -> Result:
    outrider: Outrider = program(monkeypatch, capsys, **settings)
    return outrider("settings", "check", "--json")


def test_a_secret_is_read_from_its_file_without_its_line_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("two lines\nand a space \n")
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD_FILE", str(file))
    password = load_settings().postgres_password
    assert password is not None
    assert password.get_secret_value() == "two lines\nand a space "


def test_a_secret_comes_one_way_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD", "x")
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="OUTRIDER_POSTGRES_PASSWORD or OUTRIDER_POSTGRES_PASSWORD_FILE, not both"):
        load_settings()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD_FILE", str(file))
    with pytest.raises(SettingsError, match=f"OUTRIDER_POSTGRES_PASSWORD_FILE: {file}"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_port", "eighty"),
        ("api_port", "70000"),
        ("postgres_pool_size", "0"),
        ("postgres_sslmode", "maybe"),
        ("connector_slot", "Upper-Case"),
        ("topic_prefix", "a/b"),
        ("reconciler_interval_seconds", "0"),
        ("log_level", "loud"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    variable = PREFIX + name.upper()
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=variable) as refused:
        load_settings()
    assert "\n" not in str(refused.value)


def test_no_secret_is_in_the_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSTGRES_DSN", "POSTGRES_PASSWORD", "KAFKA_SASL_PASSWORD", "KAFKA_SSL_KEY_PASSWORD"):
        monkeypatch.setenv(PREFIX + name, "dbname=hunter2")
    settings = load_settings()
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in repr(settings.kafka)


def test_password_and_tls_are_merged_into_the_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_POSTGRES_DSN", "postgresql://app@db.example/ledger")
    monkeypatch.setenv("OUTRIDER_POSTGRES_PASSWORD", "p w")
    monkeypatch.setenv("OUTRIDER_POSTGRES_SSLMODE", "verify-full")
    conninfo = load_settings().postgres_conninfo
    assert "user=app" in conninfo
    assert "password='p w'" in conninfo
    assert "sslmode=verify-full" in conninfo


@pytest.mark.parametrize(("parameters", "seconds"), [("", "10"), ("?connect_timeout=3", "3")])
def test_a_server_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, parameters: str, seconds: str
) -> None:
    monkeypatch.setenv("OUTRIDER_POSTGRES_DSN", f"postgresql://app@db.example/ledger{parameters}")
    assert conninfo_to_dict(load_settings().postgres_conninfo)["connect_timeout"] == seconds


def test_the_environment_of_settings_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment_of({"api_port": 1234, "worker_id": None, "topic_prefix": "t"}).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.api_port, settings.worker_id, settings.topic_prefix) == (1234, None, "t")


def test_check_shows_what_a_component_would_read_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = check(monkeypatch, capsys, postgres_password="hunter2", api_port=1234)
    assert result.exit_code == 0
    assert result.json["api_port"] == 1234
    assert result.json["postgres_password"] == "(set, not shown)"
    assert "hunter2" not in result.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_prot": 1}, "OUTRIDER_API_PROT is no setting; OUTRIDER_API_PORT is"),
        ({"postgres_dsn_fil": "/x"}, "OUTRIDER_POSTGRES_DSN_FIL is no setting; OUTRIDER_POSTGRES_DSN_FILE is"),
        ({"api_port_file": "/x"}, "OUTRIDER_API_PORT_FILE is no setting"),
        ({"topic_replication_factor": 1}, "OUTRIDER_TOPIC_MIN_INSYNC_REPLICAS must not be above"),
        ({"worker_partition_low": 4_000}, "OUTRIDER_WORKER_PARTITION_LOW must be below"),
        ({"kafka_security_protocol": "sasl_ssl"}, "needs a SASL mechanism, user and password"),
    ],
)
def test_check_finds_what_each_setting_allows_and_all_together_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: dict[str, object], message: str
) -> None:
    result = check(monkeypatch, capsys, **settings)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_sample_prints_the_sample(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    result = program(monkeypatch, capsys)("settings", "sample")
    assert result.exit_code == 0
    assert "#OUTRIDER_POSTGRES_DSN=" in result.stdout


@pytest.mark.parametrize(
    "values",
    [
        {"worker_lease_margin_seconds": "inf"},
        {"worker_lease_margin_seconds": "1e300"},
        {"reconciler_window_seconds": "nan"},
        {"worker_session_timeout_seconds": "0.0001"},
        {"topic_prefix": ".."},
        {"kafka_bootstrap_servers": ",,,"},
        {"postgres_dsn": "host=db badopt=1"},
        {"postgres_dsn": "garbage"},
        {"api_host": "127.0.0.1:8080"},
        {"api_host": "no host"},
        {"health_host": ""},
        {"api_receiver_networks": "10.0.0.0/8 10.1.2.3/16"},
        {"api_receiver_networks": "everywhere"},
    ],
)
def test_nonsense_is_refused_by_name(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(SettingsError, match=f"^OUTRIDER_{name.upper()}: "):
        load_settings(**values)
