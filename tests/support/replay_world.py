"""Deliveries in states, messages with all that the connector writes, and the program's own words about replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from pipeline.settings import PREFIX
from tests.support.delivery_world import World
from tests.support.program import Outrider

RATE = "100000"


def admitted(world: World, count: int, destination_id: str = "acme", prefix: str = "e") -> list[str]:
    """So many deliveries, each with its first message in the topic."""
    ids = [i for number in range(count) for i in world.admit(f"{prefix}{number}", destination_id)]
    world.publish()
    return ids


def settle(world: World, delivery_ids: Sequence[str], state: str, outcome: str) -> None:
    """As a worker, or an operator who cancels, leaves them."""
    world.ledger.execute(
        "update outrider.delivery set state = %s, lost_after = null, settled_at = now(), attempt = 1, last_outcome = %s "
        "where delivery_id = any (%s)",
        (state, outcome, list(delivery_ids)),
    )


def planned(outrider: Outrider, path: Path, *arguments: str, rate: str = RATE) -> Any:
    done = outrider("replay", "plan", "--out", str(path), "--rate", rate, "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.json


def ran(outrider: Outrider, path: Path) -> Any:
    done = outrider("replay", "run", str(path), "--reason", "test", "--json")
    assert done.exit_code == 0, done.stderr
    return done.json


def report(outrider: Outrider, run_id: str) -> dict[str, dict[str, Any]]:
    """The end report by delivery id."""
    done = outrider("replay", "report", run_id, "--json")
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["delivery_id"]: row for row in rows}


def status(outrider: Outrider, run_id: str) -> Any:
    done = outrider("replay", "status", run_id, "--json")
    assert done.exit_code == 0, done.stderr
    return done.json


def dispatches(world: World, delivery_id: str) -> list[tuple[int, str]]:
    """Number and reason of each row in the outbox."""
    return world.ledger.execute(
        "select dispatch_seq, reason from outrider.dispatch_outbox where delivery_id = %s order by outbox_id",
        (delivery_id,),
    ).fetchall()


def program_process(settings: Mapping[str, object], log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The program in a process of its own, so that it can be killed; its output goes to ``log``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {PREFIX + name.upper(): str(value) for name, value in settings.items()}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.cli", *arguments], env=environment, stdout=file, stderr=file
        )


def publish_whole(world: World, bootstrap_servers: str) -> None:
    """Every row of the outbox once more, with the headers that the connector writes."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    rows = world.ledger.execute(
        "select message_id::text, delivery_id, dispatch_seq::text, event_id, event_type, content_type, reason, "
        "headers::text, destination_id, payload from outrider.dispatch_outbox order by outbox_id"
    )
    names = ("id", "delivery_id", "dispatch_seq", "event_id", "event_type", "content_type", "reason", "headers")
    for *headers, destination_id, payload in rows:
        pairs = list(zip(names, headers, strict=True))
        producer.produce(world.dispatch, key=destination_id, value=payload, headers=pairs)
    assert producer.flush(30) == 0


def publish_attempts(world: World, bootstrap_servers: str, attempts: Sequence[tuple[str, int, str, str]]) -> None:
    """Records of the attempts topic: delivery, attempt, result, outcome."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    topic = world.dispatch.removesuffix("dispatch") + "attempts"
    now = datetime.now(UTC).isoformat()
    for number, (delivery_id, attempt, result, outcome) in enumerate(attempts):
        row = {
            "attempt_id": number,
            "recorded_at": now,
            "delivery_id": delivery_id,
            "event_id": "e",
            "event_type": "test.happened",
            "destination_id": "acme",
            "attempt": attempt,
            "dispatch_seq": attempt,
            "worker_id": "w",
            "result": result,
            "outcome": outcome,
            "status": 200,
            "ambiguous": False,
            "error": None,
            "response_excerpt": None,
            "retry_after_seconds": None,
            "next_attempt_at": None,
            "key_ids": [],
            "payload_sha256": "",
            "started_at": now,
            "duration_seconds": 0.1,
        }
        producer.produce(topic, key="acme", value=json.dumps(row), headers={"delivery_id": delivery_id})
    assert producer.flush(30) == 0
