"""Invariant 11 while the connector, the broker and the database are killed at random moments, under load.

``make prove NAME=connector-kills ARGS="--connector 100 --broker 20 --postgres 20 --seed 7"`` starts a stack of its own
and prints one JSON object. The connector and the broker get SIGKILL, PostgreSQL an immediate shutdown (SIGQUIT). Each
kill waits for rows to flow again or, as often, for nothing but a random time, so that starts and recoveries are hit
too. The test suite runs the same with a few kills.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import make_conninfo

from pipeline.ledger.migrate import migrate_up
from pipeline.stack.child_process import ChildProcess
from pipeline.stack.component import component_process
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.login_roles import create_login_roles
from pipeline.stack.ports import free_ports
from tests.proofs.report import finish, progress, spread
from tests.support.connector_world import ConnectorWorld, wait_until, world_of
from tests.support.outbox_judge import OutboxJudge, Verdict
from tests.support.outbox_load import OutboxLoad

Victim = Literal["connector", "broker", "postgres"]

MOMENT_SECONDS_MAX = 1.5
STOP_SECONDS = 40.0
EXIT_SECONDS = 30.0
FINAL_ROWS_AT_LEAST = 200


@dataclass(frozen=True, slots=True)
class Kills:
    """How many of each, and the seed of their order and moments."""

    connector: int
    broker: int
    postgres: int
    seed: int

    def order(self, choice: random.Random) -> list[Victim]:
        victims: list[Victim] = ["connector"] * self.connector + ["broker"] * self.broker + ["postgres"] * self.postgres
        choice.shuffle(victims)
        return victims


@dataclass(slots=True)
class Outcome:
    """``back_seconds``: from a kill until rows are published again, by victim, where that was waited for."""

    verdict: Verdict
    back_seconds: dict[Victim, list[float]] = field(default_factory=dict)


def prove(
    kills: Kills,
    *,
    stack: EmbeddedStack,
    world: ConnectorWorld,
    database: str,
    connector: ChildProcess,
    tell: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run a started ``connector`` over ``world`` and ``database`` (a superuser's DSN) through the kills."""
    choice = random.Random(kills.seed)
    judge = OutboxJudge(world)
    load = OutboxLoad(database, kills.seed)
    restart: Mapping[Victim, Callable[[], None]] = {
        "connector": lambda: _kill_connector(connector, choice),
        "broker": lambda: _kill_broker(stack, choice),
        "postgres": lambda: _kill_postgres(stack, choice),
    }
    back: dict[Victim, list[float]] = {}
    ended: list[str] = []
    with load.running():
        _wait_for_flow(world, connector)
        for number, victim in enumerate(kills.order(choice), start=1):
            # The moment of the kill is the subject; nothing is waited for here.
            time.sleep(choice.uniform(0, MOMENT_SECONDS_MAX))
            begun = time.monotonic()
            if not connector.is_running:
                ended.append(f"the connector ended by itself before kill {number}: {connector.log_tail(3)}")
                connector.start()
            restart[victim]()
            if choice.random() < 0.5:
                _wait_for_flow(world, connector)
                back.setdefault(victim, []).append(time.monotonic() - begun)
            tell(f"{number}: {victim} killed, {load.committed} rows committed")
        _wait_for_flow(world, connector)
        enough = load.committed + FINAL_ROWS_AT_LEAST
        wait_until(lambda: load.committed >= enough, lambda: f"sessions go on after the kills ({load.committed} rows)")
    with psycopg.connect(database, autocommit=True) as connection:
        judge.wait_until_published(connection)
        survived = connector.is_running
        status = connector.terminate(STOP_SECONDS)
        verdict = judge.verdict(connection, load.known)
    if not survived or status != 0:
        ended.append(f"the connector ended by itself or badly (status {status}): {connector.log_tail(3)}")
    verdict.faults += ended
    return Outcome(verdict, back)


def _kill_connector(connector: ChildProcess, choice: random.Random) -> None:
    connector.kill()
    time.sleep(choice.uniform(0, 0.2))
    connector.start()


def _kill_broker(stack: EmbeddedStack, choice: random.Random) -> None:
    stack.kafka.kill()
    time.sleep(choice.uniform(0, 1.0))
    stack.kafka.start()


def _kill_postgres(stack: EmbeddedStack, choice: random.Random) -> None:
    process = stack.postgres.process
    os.kill(process.pid, signal.SIGQUIT)
    process.wait(EXIT_SECONDS)
    time.sleep(choice.uniform(0, 1.0))
    stack.postgres.start()


def _wait_for_flow(world: ConnectorWorld, connector: ChildProcess) -> None:
    """Until transactions are committed to Kafka again, under the load that goes on."""
    published = world.end("dispatch")
    wait_until(lambda: world.end("dispatch") > published, lambda: f"rows flow\n{connector.log_tail(20)}")


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    kills = Kills(options.connector, options.broker, options.postgres, options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="outrider-proof-") as folder,
        EmbeddedStack(fast=True, is_brief=True) as stack,
    ):
        migrate_up(stack.postgres_dsn)
        role, password = create_login_roles(stack.postgres_dsn)["connector"]
        (health_port,) = free_ports(1)
        values: dict[str, object] = {
            "postgres_dsn": stack.postgres_dsn,
            "kafka_bootstrap_servers": stack.bootstrap_servers,
            "topic_replication_factor": 1,
            "topic_min_insync_replicas": 1,
            "connector_slot": "proof",
            "connector_transaction_rows": options.transaction_rows,
            "health_port": health_port,
        }
        world = world_of(values)
        world.create_topics()
        values["postgres_dsn"] = make_conninfo(stack.postgres_dsn, user=role, password=password)
        log = Path(folder) / "connector.log"
        connector = component_process("connector", values, log=log, on_start=stack.watch)
        connector.start()
        begun = time.monotonic()
        try:
            outcome = prove(
                kills, stack=stack, world=world, database=stack.postgres_dsn, connector=connector, tell=progress
            )
        except AssertionError as error:
            return finish("connector-kills", {"seed": kills.seed}, [str(error)])
        finally:
            connector.terminate(STOP_SECONDS)
    verdict = outcome.verdict
    figures = {
        "seed": kills.seed,
        "kills": {"connector": kills.connector, "broker": kills.broker, "postgres": kills.postgres},
        "seconds": round(time.monotonic() - begun, 1),
        "rows_committed": verdict.committed,
        "records_published": verdict.published,
        "rows_rolled_back": verdict.rolled_back,
        "keys": verdict.keys,
        "kill_to_publishing_seconds": {victim: spread(times) for victim, times in outcome.back_seconds.items()},
    }
    return finish("connector-kills", figures, verdict.faults)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make prove NAME=connector-kills ARGS=...", description=__doc__)
    parser.add_argument("--connector", type=int, default=100, metavar="N", help="kills of the connector")
    parser.add_argument("--broker", type=int, default=20, metavar="N", help="kills of Kafka")
    parser.add_argument("--postgres", type=int, default=20, metavar="N", help="immediate shutdowns of PostgreSQL")
    parser.add_argument("--transaction-rows", type=int, default=50, metavar="N", help="rows in one Kafka transaction")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeats order and moments of a run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
