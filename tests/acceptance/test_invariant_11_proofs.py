"""Invariant 11, the short forms of the long proofs in tests/proofs: kills under load, and calls that fail.

``make prove NAME=connector-kills`` and ``make prove NAME=connector-calls`` run them whole.
"""

from __future__ import annotations

import pytest

from pipeline.stack.embedded import EmbeddedStack
from tests.fixtures.components import StartComponent
from tests.proofs.connector_calls import Bench, lives
from tests.proofs.connector_kills import Kills, prove
from tests.support.connector_world import world_of
from tests.support.failing_calls import Mode

# Each mode fails calls of its own, so that together they meet most stages of a connector's life.
FIRST_CALL = {Mode.BROKEN: 9, Mode.UNANSWERED: 23, Mode.ENDED: 37, Mode.ABORTED: 51}
EVERY = 97


def test_invariant_11_connector_broker_and_database_are_killed_under_load(
    settings_values: dict[str, object], database: str, component: StartComponent, embedded_stack: EmbeddedStack
) -> None:
    world = world_of(settings_values)
    world.create_topics()
    # Small transactions, so that kills meet every stage of them.
    connector = component("connector", connector_transaction_rows=50)
    kills = Kills(connector=4, broker=1, postgres=1, seed=11)
    outcome = prove(kills, stack=embedded_stack, world=world, database=database, connector=connector)
    assert outcome.verdict.faults == []
    assert outcome.verdict.rolled_back > 0


@pytest.mark.parametrize("mode", Mode)
def test_invariant_11_a_call_to_a_server_fails(
    mode: Mode, database: str, role_dsns: dict[str, str], bootstrap_servers: str, topic_prefix: str
) -> None:
    bench = Bench(
        database=database,
        connector_dsn=role_dsns["connector"],
        bootstrap_servers=bootstrap_servers,
        name=topic_prefix.replace("-", "_"),
        admin_dsn=database,
    )
    lived = lives(bench, [mode], first=FIRST_CALL[mode], step=EVERY)
    assert [life for life in lived if life.faults] == []
    assert lived[-1].failed_call is None, "one life passes untouched"
    assert len(lived) > 2
