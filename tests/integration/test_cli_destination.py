"""``outrider destination …`` on a real ledger: what it changes, what it refuses, and what it keeps on record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiohttp import web
from psycopg.rows import dict_row
from standardwebhooks import Webhook

from pipeline.core.sealing import Vault
from pipeline.ledger.destinations import load_destinations
from pipeline.ledger.pool import open_pool
from tests.support.ledger_rows import SECRET, add_delivery, add_destination, connect, scalar
from tests.support.program import Outrider, program

URL = "https://receiver.example/hook"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        yield connection


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], role_dsns: dict[str, str]
) -> Outrider:
    """With the operator's rights, and no more."""
    return program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"])


def row(connection: psycopg.Connection, destination_id: str = "acme") -> dict[str, Any]:
    found = (
        connection.cursor(row_factory=dict_row)
        .execute("select * from outrider.destination where destination_id = %s", (destination_id,))
        .fetchone()
    )
    assert found is not None
    return found


def runs(connection: psycopg.Connection) -> list[dict[str, Any]]:
    return connection.cursor(row_factory=dict_row).execute("select * from outrider.run order by started_at").fetchall()


def test_add_makes_a_receiver_and_shows_its_secret_once(outrider: Outrider, connection: psycopg.Connection) -> None:
    added = outrider(
        *("destination", "add", "acme", "--url", URL, "--rate", "7.5", "--burst", "3", "--concurrency", "2"),
        *("--timeout-seconds", "4", "--retry-max-attempts", "9", "--subscribe", "media.*", "--subscribe", "*"),
        *("--operator", "ada", "--reason", "new customer", "--json"),
    )
    assert added.exit_code == 0
    stored = row(connection)
    assert (stored["url"], stored["start_rate_per_second"], stored["burst"], stored["concurrency"]) == (URL, 7.5, 3, 2)
    assert (stored["timeout_seconds"], stored["retry_max_attempts"]) == (4, 9)
    assert scalar(connection, "select array_agg(event_type order by event_type) from outrider.subscription") == [
        "*",
        "media.*",
    ]
    assert scalar(connection, "select secret from outrider.destination_secret") == added.json["secret"]

    (run,) = runs(connection)
    assert (run["kind"], run["operator"], run["reason"], run["woken_by"]) == (
        "destination.add",
        "ada",
        "new customer",
        "operator",
    )
    assert run["finished_at"] is not None
    secret = added.json["secret"]
    for shown in (outrider("destination", "show", "acme"), outrider("destination", "show", "acme", "--json")):
        assert secret not in shown.stdout
        assert added.json["key_id"] in shown.stdout
    assert secret not in str(run)


def test_settings_that_are_not_given_are_the_schemas(outrider: Outrider, connection: psycopg.Connection) -> None:
    assert outrider("destination", "add", "acme", "--url", URL).exit_code == 0
    connection.execute("insert into outrider.destination (destination_id, url) values ('plain', %s)", (URL,))
    ours, plain = row(connection), row(connection, "plain")
    names = set(ours) - {"destination_id", "created_at", "updated_at"}
    assert {name: ours[name] for name in names} == {name: plain[name] for name in names}


def test_the_secret_verifies_what_is_signed_with_it(
    outrider: Outrider, connection: psycopg.Connection, database: str
) -> None:
    secret = outrider("destination", "add", "acme", "--url", URL, "--json").json["secret"]

    async def secrets() -> list[str]:
        async with open_pool(database, 1, "test") as pool:
            return [s.secret for s in (await load_destinations(pool, ["acme"], Vault()))["acme"].secrets]

    assert asyncio.run(secrets()) == [secret]
    Webhook(secret)  # a key that the receivers' library takes


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--url", "http://receiver.example"], 1, "use https, or say --allow-http"),
        (["--url", "https://10.1.2.3/", "--allow-network", "10.2.0.0/16"], 1, "private"),
        (["--url", URL, "--allow-network", "inside"], 1, "write it as"),
        (["--url", URL, "--subscribe", "a*"], 2, "subscription"),
        (["--url", URL, "--subscribe", "*.a"], 2, "subscription"),
        (["--url", URL, "--subscribe", ""], 2, "subscription"),
    ],
)
def test_add_refuses_in_one_line_and_changes_nothing(
    outrider: Outrider, connection: psycopg.Connection, arguments: list[str], exit_code: int, message: str
) -> None:
    refused = outrider("destination", "add", "acme", *arguments)
    assert refused.exit_code == exit_code
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert scalar(connection, "select count(*) from outrider.destination") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", URL, "--rate", "0"],
        ["--url", URL, "--burst", "1.5"],
        ["--url", URL, "--concurrency", "0"],
        ["--url", URL, "--secret", SECRET],
        [],
    ],
)
def test_wrong_usage_is_exit_code_two(outrider: Outrider, arguments: list[str]) -> None:
    assert outrider("destination", "add", "acme", *arguments).exit_code == 2


def test_adding_twice_is_refused(outrider: Outrider, connection: psycopg.Connection) -> None:
    assert outrider("destination", "add", "acme", "--url", URL).exit_code == 0
    again = outrider("destination", "add", "acme", "--url", URL + "/other")
    assert again.exit_code == 1
    assert "exists already" in again.stderr
    assert row(connection)["url"] == URL
    assert len(runs(connection)) == 1


def test_a_secret_is_taken_over_from_a_file_or_stdin(
    outrider: Outrider, connection: psycopg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    assert outrider("destination", "add", "a", "--url", URL, "--secret-file", str(file)).exit_code == 0
    assert outrider("destination", "add", "b", "--url", URL, "--secret-file", "-", stdin=SECRET + "\n").exit_code == 0
    assert scalar(connection, "select array_agg(secret) from outrider.destination_secret") == [SECRET, SECRET]


@pytest.mark.parametrize("text", ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_" + "A" * 200, "whsec_A" * 5])
def test_a_secret_that_receivers_could_not_use_is_refused(outrider: Outrider, text: str) -> None:
    refused = outrider("destination", "add", "a", "--url", URL, "--secret-file", "-", stdin=text)
    assert refused.exit_code == 1
    assert "24 to 64 bytes" in refused.stderr


def test_set_changes_what_is_given_and_nothing_else(outrider: Outrider, connection: psycopg.Connection) -> None:
    outrider("destination", "add", "acme", "--url", URL, "--rate", "5", "--subscribe", "a", "--subscribe", "b")
    before = row(connection)
    changed = outrider("destination", "set", "acme", "--burst", "9", "--unsubscribe", "a", "--subscribe", "c.*")
    assert changed.exit_code == 0
    after = row(connection)
    assert {name for name in after if after[name] != before[name]} == {"burst", "updated_at"}
    assert scalar(connection, "select array_agg(event_type order by event_type) from outrider.subscription") == [
        "b",
        "c.*",
    ]
    assert runs(connection)[-1]["counts"] == {
        "destination_id": "acme",
        "burst": 9,
        "subscribed": ["c.*"],
        "unsubscribed": ["a"],
    }


def test_set_judges_the_url_and_the_networks_together(outrider: Outrider, connection: psycopg.Connection) -> None:
    url = "http://10.0.0.1/"
    outrider("destination", "add", "acme", "--url", url, "--allow-http", "--allow-network", "10.0.0.0/8")
    before = row(connection)
    assert "private" in outrider("destination", "set", "acme", "--no-network").stderr
    assert "private" in outrider("destination", "set", "acme", "--allow-network", "192.168.0.0/16").stderr
    assert "in the clear" in outrider("destination", "set", "acme", "--url", "http://10.0.0.2/").stderr
    assert row(connection) == before
    # The URL that stands was accepted without TLS before.
    assert outrider("destination", "set", "acme", "--allow-network", "10.0.0.0/16").exit_code == 0
    assert outrider("destination", "set", "acme", "--url", "https://10.0.1.2/").exit_code == 0
    assert outrider("destination", "set", "acme", "--url", URL, "--no-network").exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ["set", "nobody", "--rate", "1"],
        ["set", "nobody", "--url", URL],
        ["show", "nobody"],
        ["enable", "nobody", "--reason", "r"],
        ["disable", "nobody", "--reason", "r"],
        ["rotate-secret", "nobody"],
        ["test", "nobody"],
    ],
)
def test_an_unknown_destination_is_one_line(outrider: Outrider, command: list[str]) -> None:
    refused = outrider("destination", *command)
    assert refused.exit_code == 1
    assert refused.stderr == "outrider: no destination nobody: see outrider destination list\n"


def test_disable_and_enable_are_on_record(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_destination(connection)
    assert outrider("destination", "disable", "acme", "--reason", "moves house", "--operator", "ada").exit_code == 0
    assert (row(connection)["enabled"], row(connection)["disabled_reason"]) == (False, "moves house")
    assert "already" in outrider("destination", "disable", "acme", "--reason", "again").stdout
    assert outrider("destination", "enable", "acme", "--reason", "moved").exit_code == 0
    assert (row(connection)["enabled"], row(connection)["disabled_reason"]) == (True, None)
    assert [(run["kind"], run["reason"]) for run in runs(connection)] == [
        ("destination.disable", "moves house"),
        ("destination.enable", "moved"),
    ]
    assert runs(connection)[0]["operator"] == "ada"


@pytest.mark.parametrize("command", ["enable", "disable"])
def test_switching_needs_a_reason(outrider: Outrider, connection: psycopg.Connection, command: str) -> None:
    add_destination(connection)
    assert outrider("destination", command, "acme").exit_code == 2


def test_enabling_wakes_the_reconciler(outrider: Outrider, connection: psycopg.Connection, database: str) -> None:
    add_destination(connection, enabled=False)
    with connect(database) as listener:
        listener.execute("listen outrider_wakeup")
        outrider("destination", "enable", "acme", "--reason", "r")
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1


def test_rotation_keeps_the_old_secret_for_a_while(
    outrider: Outrider, connection: psycopg.Connection, database: str
) -> None:
    first = outrider("destination", "add", "acme", "--url", URL, "--json").json
    second = outrider("destination", "rotate-secret", "acme", "--overlap-hours", "2", "--json").json
    assert valid_keys(database) == [second["key_id"], first["key_id"]]
    hours = scalar(
        connection,
        "select extract(epoch from valid_until - now()) / 3600 from outrider.destination_secret where secret_id = %s",
        first["key_id"],
    )
    assert 1.9 < hours <= 2


def test_a_secret_that_leaked_is_retired_at_once(outrider: Outrider, database: str) -> None:
    outrider("destination", "add", "acme", "--url", URL)
    second = outrider("destination", "rotate-secret", "acme", "--overlap-hours", "0", "--json").json
    assert valid_keys(database) == [second["key_id"]]


def valid_keys(database: str) -> list[str]:
    async def load() -> list[str]:
        async with open_pool(database, 1, "test") as pool:
            return [s.key_id for s in (await load_destinations(pool, ["acme"], Vault()))["acme"].secrets]

    return asyncio.run(load())


def test_list_shows_every_destination(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_destination(connection, "b", enabled=False, disabled_reason="gone")
    add_destination(connection, "a")
    listed = outrider("destination", "list", "--json").json
    assert [(entry["destination_id"], entry["enabled"]) for entry in listed] == [("a", True), ("b", False)]
    lines = outrider("destination", "list").stdout.splitlines()
    assert len(lines) == 3
    assert "no: gone" in lines[2]


def test_show_counts_what_waits(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_destination(connection)
    for n, state in enumerate(["pending", "pending", "enqueued", "leased", "dead"]):
        add_delivery(connection, f"e{n}", state)
    assert outrider("destination", "show", "acme", "--json").json["unsettled"] == {
        "pending": 2,
        "enqueued": 1,
        "leased": 1,
    }


class Receiver:
    """Answers with one status, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 204
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((headers, await request.read()))
        return web.Response(status=self.status, text=None if self.status == 204 else "no, thank you")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """On a loop of its own, since commands run one themselves."""
    receiver = Receiver()
    loop = asyncio.new_event_loop()
    application = web.Application()
    application.add_routes([web.post("/hook", receiver.handle)])
    runner = web.AppRunner(application, handle_signals=False)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield receiver
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def test_a_ping_is_signed_and_its_answer_shown(
    outrider: Outrider, connection: psycopg.Connection, receiver: Receiver
) -> None:
    added = outrider(
        *("destination", "add", "acme", "--url", receiver.url, "--allow-http", "--allow-network", "127.0.0.0/8"),
        "--json",
    ).json
    sent = outrider("destination", "test", "acme", "--json")
    assert sent.exit_code == 0
    assert (sent.json["status"], sent.json["outcome"]) == (204, "success")
    ((headers, body),) = receiver.requests
    assert Webhook(added["secret"]).verify(body, headers)["type"] == "outrider.ping"
    assert headers["webhook-id"] == headers["idempotency-key"] == sent.json["webhook_id"]
    # It is no delivery: the ledger knows nothing of it.
    assert scalar(connection, "select count(*) from outrider.event") == 0
    assert scalar(connection, "select count(*) from outrider.delivery_attempt") == 0


def test_a_ping_that_is_refused_is_exit_code_one(outrider: Outrider, receiver: Receiver) -> None:
    receiver.status = 401
    outrider(*("destination", "add", "acme", "--url", receiver.url, "--allow-http", "--allow-network", "127.0.0.0/8"))
    sent = outrider("destination", "test", "acme")
    assert sent.exit_code == 1
    assert "unauthorized" in sent.stdout
    assert "no, thank you" in sent.stdout


def test_a_ping_meets_the_rules_of_the_sender(
    outrider: Outrider, connection: psycopg.Connection, receiver: Receiver
) -> None:
    add_destination(connection, url=receiver.url)
    sent = outrider("destination", "test", "acme", "--json")
    assert sent.exit_code == 1
    assert sent.json["outcome"] == "target_refused"
    assert receiver.requests == []


def test_a_pause_keeps_it_enabled_and_resume_ends_it(outrider: Outrider, connection: psycopg.Connection) -> None:
    add_destination(connection)
    assert outrider("destination", "pause", "acme", "--reason", "their deploy").stdout == "paused acme\n"
    assert (row(connection)["enabled"], row(connection)["paused_reason"]) == (True, "their deploy")
    assert "paused: their deploy" in outrider("destination", "list").stdout
    assert outrider("destination", "pause", "acme", "--reason", "again").stdout == "acme is paused already\n"
    assert row(connection)["paused_reason"] == "their deploy"
    # Admission goes on.
    connection.execute("select outrider.admit('e', 't', 'x'::bytea, destinations => array['acme'])")
    assert outrider("destination", "resume", "acme", "--reason", "done").stdout == "resumed acme\n"
    assert (row(connection)["paused_at"], row(connection)["paused_reason"]) == (None, None)
    assert outrider("destination", "resume", "acme", "--reason", "again").stdout == "nothing holds acme\n"
    assert [run["kind"] for run in runs(connection)] == ["destination.pause", "destination.resume"]
    assert outrider("destination", "pause", "nobody", "--reason", "r").exit_code == 1


def test_show_tells_what_is_in_force_and_resume_ends_what_the_receiver_began(
    outrider: Outrider, connection: psycopg.Connection
) -> None:
    add_destination(connection, start_rate_per_second=40, burst=20)
    well = outrider("destination", "show", "acme", "--json").json["pace"]
    assert (well["rate_in_force"], well["burst_in_force"], well["breaker"]) == (40, 20, "closed")
    connection.execute(
        "update outrider.destination_pace set share_at_slowing = 0.25, slowed_at = clock_timestamp(), failures = 12, "
        "openings = 2, open_until = clock_timestamp() + interval '1 min', paused_until = clock_timestamp() + interval '1 h'"
    )
    ill = outrider("destination", "show", "acme", "--json").json["pace"]
    assert ill["rate_in_force"] == pytest.approx(10, abs=1)
    assert ill["burst_in_force"] == 5
    assert (ill["breaker"], ill["failures_in_a_row"]) == ("open", 12)
    assert ill["throttled_until"] is not None
    assert outrider("destination", "resume", "acme", "--reason", "they say it is well").exit_code == 0
    again = outrider("destination", "show", "acme", "--json").json["pace"]
    assert (again["breaker"], again["failures_in_a_row"], again["throttled_until"]) == ("closed", 0, None)
    # The rate comes back by itself.
    assert again["rate_share"] < 0.5
