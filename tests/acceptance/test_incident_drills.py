"""The incident drills of docs/incidents.md: their commands as they stand there, over the whole pipeline."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.ports import free_ports
from tests.fixtures.components import StartComponent
from tests.fixtures.databases import database_name, drop_database
from tests.support.delivery_world import Received, World, opened, wait_until
from tests.support.documented_drill import Shell, documented_commands
from tests.support.health import get
from tests.support.program import Outrider

LOST_EFFECTS = "A receiver lost six hours of effects"
RESTORED = "The database was restored to an older state"
KEPT = 5
LOST = 40
PAUSE_SECONDS = 0.05
STOP_SECONDS = 40


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        yield world


@pytest.fixture
def shell(
    *,
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
    tmp_path: Path,
    topic_prefix: str,
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """An operator's shell in a folder of its own."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    names = {"outrider.audit": f"{topic_prefix}.audit"}
    return Shell(folder, {**settings_values, "postgres_dsn": role_dsns["operator"]}, outrider, names)


def payload(number: int) -> bytes:
    return b"\x00%d\xff" % number


def database_time(world: World) -> str:
    row = world.ledger.execute("select clock_timestamp()").fetchone()
    assert row is not None
    return str(row[0].astimezone(UTC).isoformat().replace("+00:00", "Z"))


@contextmanager
def live_traffic(dsn: str) -> Iterator[dict[str, bytes]]:
    """Events for acme one after the other, until the end; delivery id -> body of what was admitted so far."""
    admitted: dict[str, bytes] = {}
    over = threading.Event()

    def admit() -> None:
        with psycopg.connect(dsn, autocommit=True) as session:
            number = 0
            while not over.is_set():
                number += 1
                body = b"live %d" % number
                row = session.execute(
                    "select delivery_id from outrider.admit(%s, 'test.live', %s, destinations => array['acme'])",
                    (f"live-{number}", body),
                ).fetchone()
                assert row is not None
                admitted[row[0]] = body
                over.wait(PAUSE_SECONDS)

    thread = threading.Thread(target=admit)
    thread.start()
    try:
        yield admitted
    finally:
        over.set()
        thread.join()


def test_a_receiver_that_lost_hours_of_effects_has_them_again(
    world: World, component: StartComponent, shell: Shell, database: str
) -> None:
    for name in ("connector", "worker", "audit"):
        component(name)
    component("reconciler", reconciler_interval_seconds=0.2)
    receiver = world.receiver
    since = database_time(world)
    bodies = {world.admit(f"e{n}", "acme", payload=payload(n))[0]: payload(n) for n in range(KEPT + LOST)}
    wait_until(lambda: world.states() == {"succeeded": KEPT + LOST}, "all has been delivered")
    until = database_time(world)
    assert Counter(r.delivery_id for r in receiver.received) == dict.fromkeys(bodies, 1)

    ids = list(bodies)
    kept, lost = ids[:KEPT], ids[KEPT:]
    before = len(receiver.received)
    shell.names |= {"2026-12-01T06:00:00Z": since, "2026-12-01T12:00:00Z": until, "DELIVERY": lost[0]}

    def seen_since() -> list[Received]:
        return receiver.received[before:]

    def write_list(name: str, already: list[str]) -> None:
        """What the receiver has: each id once, as a receiver that drops repeats keeps them."""
        have = dict.fromkeys([*already, *(r.delivery_id for r in seen_since())])
        (shell.folder / name).write_text("".join(f"{delivery_id}\n" for delivery_id in have))

    write_list("theirs.txt", kept)
    said: dict[str, str] = {}
    with live_traffic(database) as live:
        wait_until(seen_since, "live traffic flows")
        for command in documented_commands(LOST_EFFECTS):
            if " replay report " in command:
                wait_until(lambda: set(lost) <= {r.delivery_id for r in seen_since()}, "all that was lost has come")
                wait_until(lambda: succeeded(world, lost), "the ledger knows")
            if "theirs-now.txt" in command:
                write_list("theirs-now.txt", kept)
            said[command.split("    #")[0]] = shell.run(command)
    wait_until(lambda: world.states() == {"succeeded": KEPT + LOST + len(live)}, "live traffic is delivered too")

    assert sorted((shell.folder / "lost.txt").read_text().split()) == sorted(lost)
    replayed = [json.loads(line) for line in (shell.folder / "replayed.ndjson").read_text().splitlines()]
    assert sorted(row["delivery_id"] for row in replayed) == sorted(lost)
    assert output(said, "uniq -c").split() == [str(LOST), "replayed", "succeeded"]
    assert "no difference" in output(said, "theirs-now.txt")
    assert output(said, "audit show").count("replay") >= 1
    assert "CONTRADICTION" not in output(said, "audit show")
    assert "acme lost 06:00 to 12:00" in output(said, "runs show")

    # Effects: what was lost once more, what was not lost not, live ones once; each with its own bytes.
    again = seen_since()
    assert Counter(r.delivery_id for r in again) == {**dict.fromkeys(lost, 1), **dict.fromkeys(live, 1)}
    assert {r.delivery_id: r.body for r in again} == {**{i: bodies[i] for i in lost}, **live}
    # Live traffic went on between the first and the last of the replayed.
    places = [place for place, r in enumerate(again) if r.delivery_id in bodies]
    assert any(r.delivery_id in live for r in again[places[0] : places[-1]])


def test_a_database_that_was_restored_is_rebuilt_and_no_receiver_sees_an_effect_twice(
    world: World, component: StartComponent, shell: Shell, database: str, postgres_dsn: str
) -> None:
    running: dict[str, ChildProcess] = {}

    def start(*names: str) -> None:
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        for name, port in ports.items():
            running[name] = component(name, health_port=port, reconciler_interval_seconds=0.2)
        if names == ("connector",):
            wait_until(partial(is_ready, ports["connector"]), "the connector streams")

    def stop(*names: str) -> None:
        """All at once."""
        ending = [running.pop(name) for name in names if name in running]
        with ThreadPoolExecutor() as pool:
            assert set(pool.map(lambda process: process.terminate(STOP_SECONDS), ending)) == {0}

    def admitted(first: int, count: int) -> dict[str, bytes]:
        return {world.admit(f"e{n}", "acme", payload=payload(n))[0]: payload(n) for n in range(first, first + count)}

    start("connector", "worker", "audit", "reconciler")
    before = admitted(0, 8)
    wait_until(lambda: world.states() == {"succeeded": 8}, "what the backup has is delivered")
    stop("connector", "worker", "audit", "reconciler")
    backup = copied(world, postgres_dsn, database)
    start("connector", "worker", "audit", "reconciler")
    delivered = admitted(8, 12)
    wait_until(lambda: world.states() == {"succeeded": 20}, "what the backup lacks is delivered")
    stop("worker", "reconciler")
    due = admitted(20, 5)
    wait_until(lambda: len(world.records(world.dispatch)) == 25, "some is in the topic, and no worker had it")

    said: dict[str, str] = {}
    for command in documented_commands(RESTORED):
        match command.split()[:3]:
            case ["docker", "compose", "stop"]:
                stop(*command.split()[3:])
                restored(world, postgres_dsn, database, backup)
                assert world.states() == {"succeeded": 8}
            case ["docker", "compose", "start"]:
                start(*(name for name in command.split()[3:] if name != "api"))
            case _:
                if " reconcile report " in command:
                    wait_until(lambda: world.states() == {"succeeded": 25}, "what was due is delivered")
                said[command] = shell.run(command)

    assert "slot missing" in output(said, "connector plan")
    assert re.search(r"would restore +17\n", output(said, "--out rebuild.plan"))
    assert re.search(r"would restore +0\n", output(said, "--out again.plan"))
    assert "ATTEMPTS are numbered up to 8 in the ledger and to 20 in the topic" in output(said, "--out rebuild.plan")
    assert "ATTEMPTS" not in output(said, "--out again.plan")
    assert "no difference" in output(said, "reconcile report")
    assert Counter(r.delivery_id for r in world.receiver.received) == dict.fromkeys({**before, **delivered, **due}, 1)
    assert {r.delivery_id: r.body for r in world.receiver.received} == {**before, **delivered, **due}
    # It goes on as if nothing had been.
    after = admitted(25, 1)
    wait_until(lambda: world.states() == {"succeeded": 26}, "new ones are delivered")
    assert [r.delivery_id for r in world.receiver.received][25:] == list(after)


def copied(world: World, postgres_dsn: str, database: str) -> str:
    """A backup: the whole database under another name. Nothing may be connected meanwhile."""
    world.ledger.close()
    backup = f"{database_name(database)}_backup"
    copy = sql.SQL("create database {} template {}")
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(copy.format(sql.Identifier(backup), sql.Identifier(database_name(database))))
    world.ledger = psycopg.connect(database, autocommit=True)
    return backup


def restored(world: World, postgres_dsn: str, database: str, backup: str) -> None:
    """The database and its slot are gone, and the backup stands in its place, as after a restore into the same server."""
    world.ledger.close()
    drop_database(postgres_dsn, database_name(database))
    rename = sql.SQL("alter database {} rename to {}")
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(rename.format(sql.Identifier(backup), sql.Identifier(database_name(database))))
    world.ledger = psycopg.connect(database, autocommit=True)


def is_ready(port: int) -> bool:
    return get(port, "/readyz")[0] == 200


def succeeded(world: World, delivery_ids: list[str]) -> bool:
    row = world.ledger.execute(
        "select bool_and(state = 'succeeded') from outrider.delivery where delivery_id = any (%s)", (delivery_ids,)
    ).fetchone()
    return row is not None and bool(row[0])


def output(said: dict[str, str], part: str) -> str:
    """What the one command with these words printed."""
    (found,) = [text for command, text in said.items() if part in command]
    return found
