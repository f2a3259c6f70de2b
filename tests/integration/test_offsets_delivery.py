"""Plans for the delivery group also say what the ledger will do about them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.delivery_world import World, opened
from tests.support.program import Outrider, program

GROUP = "delivery"
NOTHING = {"at_least": 0, "at_most": 0}


def exactly(count: int) -> dict[str, int]:
    return {"at_least": count, "at_most": count}


def at_most(count: int) -> dict[str, int]:
    return {"at_least": 0, "at_most": count}


@pytest.fixture
def world(database: str, bootstrap_servers: str, topic_prefix: str) -> Iterator[World]:
    """Nine messages in one partition: four current and unclaimed, three settled, one repeated, one of no delivery."""
    with opened(database, bootstrap_servers, topic_prefix) as world:
        world.add_destination("acme")
        ids = [delivery_id for number in range(8) for delivery_id in world.admit(f"e{number}", "acme")]
        world.publish()
        world.ledger.execute(
            "update outrider.delivery set state = 'succeeded', lost_after = null, settled_at = now() "
            "where delivery_id = any (%s)",
            (ids[:3],),
        )
        world.ledger.execute(
            "update outrider.delivery set dispatch_seq = dispatch_seq + 1 where delivery_id = %s", (ids[3],)
        )
        world.publish_rows([(0, "m", "dlv_nobody", 1, "acme", b"{}", "admitted")])
        yield world


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bootstrap_servers: str,
    topic_prefix: str,
    role_dsns: dict[str, str],
) -> Outrider:
    return program(
        monkeypatch,
        capsys,
        kafka_bootstrap_servers=bootstrap_servers,
        postgres_dsn=role_dsns["operator"],
        topic_prefix=topic_prefix,
    )


def plan(outrider: Outrider, world: World, path: Path, *arguments: str) -> Any:
    done = outrider(
        "offsets", "plan", world.group, "--topic", world.dispatch, "--out", str(path), "--reason", "test", *arguments
    )
    assert done.exit_code == 0, done.stderr
    return done


def commit(outrider: Outrider, world: World, path: Path, where: str) -> None:
    plan(outrider, world, path, where)
    done = outrider("offsets", "apply", str(path), "--allow-skip", "--watch-seconds", "0")
    assert done.exit_code == 0, done.stderr


def test_skipping_counts_what_the_reconciler_will_find(outrider: Outrider, world: World, tmp_path: Path) -> None:
    commit(outrider, world, tmp_path / "1", "--to-earliest")
    ledger = plan(outrider, world, tmp_path / "2", "--to-latest", "--scan", "--json").json["ledger"]
    assert ledger["skipped_current"] == exactly(4)
    assert ledger["skipped_stale"] == exactly(5)
    assert (ledger["again_current"], ledger["again_stale"]) == (NOTHING, NOTHING)
    assert ledger["broken"] == 1
    latest = world.ledger.execute("select max(lost_after) from outrider.delivery where dispatch_seq = 1").fetchone()
    assert latest is not None
    assert datetime.fromisoformat(ledger["found_until"]) == latest[0]


def test_rewinding_counts_the_stale(outrider: Outrider, world: World, tmp_path: Path) -> None:
    commit(outrider, world, tmp_path / "1", "--to-latest")
    done = plan(outrider, world, tmp_path / "2", "--to-earliest", "--scan", "--json").json
    assert done["ledger"]["again_current"] == exactly(4)
    assert done["ledger"]["again_stale"] == exactly(5)
    assert (done["ledger"]["skipped_current"], done["ledger"]["skipped_stale"]) == (NOTHING, NOTHING)
    text = plan(outrider, world, tmp_path / "3", "--to-earliest", "--scan").stdout
    assert "stale, so nothing comes of it: 5 messages" in text


def test_without_a_scan_the_ledger_bounds_what_may_be_skipped(outrider: Outrider, world: World, tmp_path: Path) -> None:
    commit(outrider, world, tmp_path / "1", "--to-earliest")
    done = plan(outrider, world, tmp_path / "2", "--to-latest", "--json").json
    # Nine messages and two markers; five rows are on the way, one of them not yet in Kafka.
    assert sum(move["messages"]["at_most"] for move in done["moves"]) == 11
    assert done["ledger"]["skipped_current"] == at_most(5)
    assert done["ledger"]["skipped_stale"] == at_most(11)


def test_a_move_of_nothing_has_nothing_to_say(outrider: Outrider, world: World, tmp_path: Path) -> None:
    commit(outrider, world, tmp_path / "1", "--to-latest")
    ledger = plan(outrider, world, tmp_path / "2", "--to-latest", "--scan", "--json").json["ledger"]
    assert {ledger[name]["at_most"] for name in ledger if name.startswith(("again", "skipped"))} == {0}
    assert ledger["found_until"] is None
