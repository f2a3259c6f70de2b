"""What goes over the wire and what answers mean, set on the command line; and the keys that seal secrets."""

from __future__ import annotations

import asyncio
import base64

import psycopg
import pytest

from pipeline.core.sealing import Vault, is_sealed, new_key
from pipeline.ledger.destinations import Credential, Destination, load_destinations
from pipeline.ledger.pool import open_pool
from tests.receivers.certificates import Authority
from tests.support.program import Outrider, program

URL = "https://receiver.example/hook"
OLD, NEW = new_key("old"), new_key("new")


@pytest.fixture
def make(monkeypatch, capsys, database):
    """A program with these keys; the destination acme is there."""

    def made(keys: str | None = None) -> Outrider:
        given = {} if keys is None else {"secrets_keys": keys}
        return program(monkeypatch, capsys, postgres_dsn=database, **given)

    return made


@pytest.fixture
def outrider(make) -> Outrider:
    outrider = make(OLD)
    assert outrider("destination", "add", "acme", "--url", URL).exit_code == 0
    return outrider


def loaded(database: str, keys: str | None = OLD) -> Destination:
    async def load() -> Destination:
        async with open_pool(database, 1, "test") as pool:
            return (await load_destinations(pool, ["acme"], Vault.of(keys)))["acme"]

    return asyncio.run(load())


def stored(connection: psycopg.Connection) -> list[str]:
    return [
        text
        for (text,) in connection.execute(
            "select secret from outrider.destination_secret union all select authorization_value from "
            "outrider.destination_credential where authorization_value is not null union all select client_key "
            "from outrider.destination_credential where client_key is not null"
        )
    ]


def test_what_answers_mean_is_changed_shown_and_taken_back(outrider, database):
    changed = outrider(
        *("destination", "answers", "acme", "--rule", "404=retry", "--rule", "tls_failed=dead"),
        *("--delays", "5, 30,300", "--unauthorized-delays", "60"),
    )
    assert changed.exit_code == 0, changed.stderr
    destination = loaded(database)
    assert destination.answer_rules == {"404": "retry", "tls_failed": "dead"}
    assert destination.retry_delays_seconds == (5.0, 30.0, 300.0)
    assert destination.unauthorized_delays_seconds == (60.0,)
    shown = outrider("destination", "show", "acme", "--json").json
    assert shown["answer_rules"] == {"404": "retry", "tls_failed": "dead"}
    assert outrider("destination", "answers", "acme", "--no-rules", "--no-delays").exit_code == 0
    destination = loaded(database)
    assert (destination.answer_rules, destination.retry_delays_seconds) == ({}, None)
    assert destination.unauthorized_delays_seconds == (60.0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--rule", "200=retry"), "neither a status from 300 to 599"),
        (("--rule", "404"), "it may be retry, dead or success"),
        (("--rule", "dns_failed=success"), "it may be retry or dead"),
        (("--delays", "5,x"), "write 1 to 100 numbers"),
        (("--delays", ""), "write 1 to 100 numbers"),
        (("--delays", "0"), "write 1 to 100 numbers"),
        (("--unauthorized-delays", "nan"), "write 1 to 100 numbers"),
        (("--rule", "404=dead", "--no-rules"), "exclude each other"),
    ],
)
def test_answers_that_mean_nothing_are_refused_in_one_line(outrider, arguments, message):
    result = outrider("destination", "answers", "acme", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_headers_and_credentials_are_set_sealed_and_never_shown(outrider, database, connection, tmp_path):
    authority = Authority()
    certificate, key = authority.issue("outrider")
    files = {"token": "t0ken\n", "ca": authority.pem, "certificate": certificate, "key": key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = outrider(
        *("destination", "wire", "acme", "--header", "X-Tenant: 7", "--bearer-file", str(tmp_path / "token")),
        *("--ca-file", str(tmp_path / "ca"), "--client-certificate-file", str(tmp_path / "certificate")),
        *("--client-key-file", str(tmp_path / "key"), "--reason", "their gateway"),
    )
    assert result.exit_code == 0, result.stderr
    destination = loaded(database)
    assert destination.static_headers == (("X-Tenant", "7"),)
    assert destination.credential == Credential("Bearer t0ken", authority.pem, certificate, key)
    assert len(stored(connection)) == 3
    assert all(is_sealed(text) for text in stored(connection))

    shown = outrider("destination", "show", "acme", "--json")
    facts = ("authorization", "has_ca", "has_client_certificate", "static_headers")
    assert [shown.json[name] for name in facts] == ["Bearer", True, True, {"X-Tenant": "7"}]
    recorded = str(connection.execute("select json_agg(r) from outrider.run r").fetchone())
    for secret in ("t0ken", key[100:140], *(text[-40:] for text in stored(connection))):
        assert secret not in shown.stdout + outrider("destination", "show", "acme").stdout + recorded

    assert outrider("destination", "wire", "acme", "--basic-file", "-", stdin="user:p w:x\n").exit_code == 0
    encoded = base64.b64encode(b"user:p w:x").decode()
    assert loaded(database).credential.authorization == f"Basic {encoded}"
    taken_back = ("--no-authorization", "--no-ca", "--no-client-certificate", "--no-headers")
    assert outrider("destination", "wire", "acme", *taken_back).exit_code == 0
    assert loaded(database).credential == Credential()
    assert loaded(database).static_headers == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to change"),
        (("--header", "no colon"), "write it as"),
        (("--header", "webhook-id: x"), "set by the sender"),
        (("--header", "Authorization: x"), "set by the sender"),
        (("--header", "traceparent: x"), "belong to the event"),
        (("--header", "x: é"), "outside ASCII"),
        (("--header", "a b: x"), "not an HTTP token"),
        (("--bearer-file", "/nowhere"), "/nowhere cannot be read"),
        (("--bearer-file", "-"), "one word of printable ASCII"),
        (("--basic-file", "-"), "write user:password"),
        (("--ca-file", "-"), "no certificate in PEM"),
        (("--client-certificate-file", "-"), "belong together"),
        (("--bearer-file", "-", "--no-authorization"), "exclude each other"),
    ],
)
def test_what_cannot_go_over_the_wire_is_refused_in_one_line(outrider, arguments, message):
    result = outrider("destination", "wire", "acme", *arguments, stdin="two words\n")
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "two words" not in result.stderr


def test_a_v1a_key_signs_beside_v1_and_rotates_by_itself(outrider, database, connection):
    first = outrider("destination", "rotate-secret", "acme", "--scheme", "v1a", "--json").json
    assert first["secret"].startswith("whsk_")
    assert first["public_key"].startswith("whpk_")
    second = outrider("destination", "rotate-secret", "acme", "--scheme", "v1a", "--json").json
    kinds = [secret.secret.partition("_")[0] for secret in loaded(database).secrets]
    assert sorted(kinds) == ["whsec", "whsk", "whsk"]
    shown = outrider("destination", "show", "acme", "--json").json["secrets"]
    current = [key for key in shown if key["valid_until"] is None]
    assert sorted((key["scheme"], key["public_key"]) for key in current) == [
        ("v1", None),
        ("v1a", second["public_key"]),
    ] or [key["scheme"] for key in current] == ["v1a", "v1"]
    assert all(key["sealed_with"] == "old" for key in shown)
    assert all(is_sealed(text) for text in stored(connection))
    text = outrider("destination", "show", "acme").stdout
    assert second["public_key"] in text
    assert second["secret"] not in text


def test_secrets_move_to_a_new_key_and_plain_ones_are_sealed(make, outrider, database, connection):
    plain = make()
    assert plain("destination", "add", "before", "--url", URL).exit_code == 0
    outrider("destination", "wire", "acme", "--bearer-file", "-", stdin="t0ken\n")
    before = loaded(database)

    status = outrider("secrets", "status", "--json")
    assert status.exit_code == 1
    assert status.json == {
        "current": "old",
        "sealed": [{"key_id": None, "secrets": 1}, {"key_id": "old", "secrets": 2}],
    }
    both = make(f"{NEW} {OLD}")
    assert both("secrets", "rotate-key", "--reason", "yearly", "--json").json == {"current": "new", "changed": 3}
    assert both("secrets", "rotate-key", "--json").json["changed"] == 0
    only_new = make(NEW)
    assert only_new("secrets", "status").exit_code == 0
    assert loaded(database, NEW) == before
    assert all(text.startswith("sealed:1:new:") for text in stored(connection))
    kinds = connection.execute("select count(*) from outrider.run where kind = 'secrets.rotate_key'").fetchone()
    assert kinds == (2,)


def test_what_cannot_be_opened_is_said_and_what_was_done_stays(make, outrider, database):
    failed = make(NEW)("secrets", "rotate-key")
    assert failed.exit_code == 1
    assert "key old, which is not in OUTRIDER_SECRETS_KEYS" in failed.stderr
    ping = make(NEW)("destination", "test", "acme")
    assert ping.exit_code == 1
    assert "cannot be opened" in ping.stderr
    problem = loaded(database, NEW)
    assert problem.secrets == ()
    assert "key old" in problem.problem


def test_without_a_key_there_is_nothing_to_rotate_to(make):
    result = make()("secrets", "rotate-key")
    assert result.exit_code == 1
    assert "outrider secrets new-key" in result.stderr


def test_a_new_key_fits_the_setting(make):
    key = make()("secrets", "new-key", "2026a").stdout.strip()
    assert Vault.of(key).current_id == "2026a"
    assert make()("secrets", "new-key", "a b").exit_code == 2
