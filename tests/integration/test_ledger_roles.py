"""Each role may do what its component does, and is refused everything else."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from tests.support.ledger_rows import STATE_COLUMNS, add_delivery, add_destination

ROLES = ("application", "connector", "worker", "reconciler", "auditor", "operator", "api")
SOURCES = ("source", "source_shard", "source_wakeup", "source_refusal", "source_shadow")
REPLAYS = ("replay", "replay_cursor", "replay_wanted", "replay_item", "replay_evidence")
TABLES = (
    "event",
    "destination",
    "destination_pace",
    "destination_secret",
    "destination_credential",
    "subscription",
    "delivery",
    "dispatch_outbox",
    "delivery_attempt",
    "run",
    "ledger_setting",
    "api_key",
    *SOURCES,
    *REPLAYS,
)
AUDIT = "outrider_audit.record"

# What each role may read. Secrets are for those that sign or rotate.
READS = {
    "application": set[str](),
    "connector": {"dispatch_outbox", "delivery_attempt"},
    "worker": set(TABLES) - {"subscription", "api_key", *SOURCES, *REPLAYS},
    # All that a worker reads, and the sources.
    "reconciler": set(TABLES) - {"subscription", "api_key", *REPLAYS},
    "auditor": set[str](),
    "operator": set(TABLES),
    # Of events and attempts it reads columns: no payload, and nothing that a receiver said.
    "api": {
        *("destination", "destination_pace", "destination_secret", "destination_credential", "subscription"),
        *("delivery", "run", "ledger_setting", "api_key"),
    },
}
DELETES = {
    **{role: set[str]() for role in ROLES},
    "operator": {
        *("destination", "destination_pace", "destination_secret", "destination_credential", "subscription"),
        *("replay_item", "replay_wanted", "replay_evidence"),
    },
    "api": {"subscription"},
    "reconciler": {"source_wakeup", "source_refusal", "source_shadow"},
}

ActAs = Callable[[str, str], None]


@pytest.fixture
def act_as(rolled_back: psycopg.Connection) -> ActAs:
    """Run one statement as a member of a group role; what it did is undone."""
    add_destination(rolled_back)
    add_delivery(rolled_back, "waiting", "pending")

    def run(role: str, statement: str) -> None:
        with rolled_back.transaction(force_rollback=True):
            rolled_back.execute(sql.SQL("set local role {}").format(sql.Identifier(f"outrider_{role}")))
            rolled_back.execute(statement.encode())

    return run


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", TABLES)
def test_reading(act_as: ActAs, role: str, table: str) -> None:
    if table in READS[role]:
        act_as(role, f"select * from outrider.{table}")
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            act_as(role, f"select * from outrider.{table}")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", TABLES)
def test_deleting(act_as: ActAs, role: str, table: str) -> None:
    if table in DELETES[role]:
        act_as(role, f"delete from outrider.{table} where false")
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            act_as(role, f"delete from outrider.{table} where false")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("table", [*(f"outrider.{table}" for table in TABLES), AUDIT])
def test_nobody_empties_a_table(act_as: ActAs, role: str, table: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        act_as(role, f"truncate {table} cascade")


APPENDED = '{"topic": "t", "partition": 0, "log_offset": 0, "logged_at": "2026-01-01T00:00:00Z"}'
ADMIT = "select outrider.admit('new', 't', 'x'::bytea, destinations => array['acme'])"
MOVE = "update outrider.delivery set state = 'dead', next_attempt_at = null, settled_at = clock_timestamp()"
ALLOWED = [
    ("api", "select * from outrider.admit_many('[]', '{}')"),
    ("api", "update outrider.api_key set last_used_at = now()"),
    ("api", "insert into outrider.destination (destination_id, url) values ('n', 'https://x.example')"),
    ("application", ADMIT),
    ("application", "select * from outrider.delivery_status('waiting')"),
    ("operator", ADMIT),
    ("worker", MOVE),
    ("worker", "update outrider.destination_pace set tokens = 0"),
    ("worker", "update outrider.destination set enabled = false, disabled_reason = 'gone', updated_at = now()"),
    ("worker", "insert into outrider.run (kind, woken_by) values ('reconcile', 'timer')"),
    ("worker", "select outrider.ensure_partitions(3)"),
    ("worker", "select outrider.drop_expired_partitions(7, 90)"),
    ("worker", "select outrider.delivery_identity('e', 'd'), outrider.message_identity('d', 1)"),
    ("reconciler", "select * from outrider.admit_many('[]', '{}')"),
    ("reconciler", MOVE),
    ("reconciler", "update outrider.source set interval_at = now(), cron_at = now()"),
    ("reconciler", "select outrider.wake_source('assets', 'kafka', null)"),
    ("reconciler", "select outrider.forget_empty_passes(interval '1 day')"),
    ("api", "select outrider.wake_source('assets', 'http', 'api:x')"),
    ("operator", "update outrider.source set enabled = false"),
    (
        "operator",
        "insert into outrider.source_shard (source_id, shard, shard_count, mode) select 'x', 0, 1, 'live' where false",
    ),
    ("application", "select outrider.live_shards('assets'), outrider.shard_of('a', 4)"),
    ("operator", MOVE),
    ("operator", "update outrider.delivery set last_outcome = 'cancelled'"),
    ("operator", "update outrider.ledger_setting set payload_bytes_max = 5"),
    ("operator", "insert into outrider.destination (destination_id, url) values ('n', 'https://x.example')"),
    ("operator", "insert into outrider.subscription values ('acme', 't')"),
    ("operator", "insert into outrider.run (kind, woken_by) values ('delivery.retry', 'operator')"),
    ("operator", f"select * from {AUDIT}"),
    ("operator", "select * from outrider_audit.tip, outrider_audit.anchor, outrider_audit.tombstone"),
    ("operator", "select outrider_audit.expire(365)"),
    ("reconciler", "select outrider_audit.expire(365)"),
    ("auditor", f"select outrider_audit.append('[{APPENDED}]')"),
    ("auditor", "select outrider_audit.ensure_partitions(1, 1)"),
]


@pytest.mark.parametrize(("role", "statement"), ALLOWED)
def test_role_may(act_as: ActAs, role: str, statement: str) -> None:
    act_as(role, statement)


REFUSED = [
    ("application", "select * from outrider.admit_many('[]', '{}')"),
    ("operator", "update outrider.api_key set scopes = array['operate']"),
    ("api", ADMIT),
    ("api", "update outrider.api_key set revoked_at = null"),
    ("api", "insert into outrider.api_key (key_id) values ('aaaaaaaaaaaaaaaa')"),
    ("api", "update outrider.ledger_setting set payload_bytes_max = 1"),
    ("api", MOVE),
    ("api", "select payload from outrider.event"),
    ("api", "select response_excerpt from outrider.delivery_attempt"),
    ("application", "insert into outrider.event (event_id) values ('x')"),
    ("application", "select outrider.ensure_partitions(3)"),
    ("application", "select outrider.check_headers('{}')"),
    ("connector", ADMIT),
    ("connector", "insert into outrider.dispatch_outbox (delivery_id) values ('x')"),
    ("worker", ADMIT),
    ("worker", "select * from outrider.admit_many('[]', '{}')"),
    ("worker", "select outrider.wake_source('assets', 'kafka', null)"),
    ("reconciler", ADMIT),
    ("reconciler", "insert into outrider.event (event_id) values ('x')"),
    ("reconciler", "update outrider.source_shard set mode = 'live'"),
    ("reconciler", "update outrider.source set enabled = true"),
    ("reconciler", "update outrider.run set operator = 'nobody'"),
    ("application", "select outrider.wake_source('assets', 'http', 'somebody')"),
    ("api", "update outrider.source set enabled = true"),
    ("worker", "update outrider.run set operator = 'nobody', reason = 'forged'"),
    ("worker", "update outrider.delivery set event_id = 'other'"),
    ("worker", "update outrider.delivery set destination_id = 'other'"),
    ("worker", "update outrider.delivery set delivery_id = 'other'"),
    ("worker", "update outrider.event set payload = ''"),
    ("worker", "update outrider.dispatch_outbox set payload = ''"),
    ("worker", "update outrider.delivery_attempt set result = 'succeeded'"),
    ("worker", "update outrider.destination set url = 'https://evil.example'"),
    ("worker", "insert into outrider.delivery (delivery_id) values ('x')"),
    ("worker", f"select * from {AUDIT}"),
    ("auditor", f"update {AUDIT} set defect = null"),
    ("auditor", f"delete from {AUDIT}"),
    ("auditor", f"select * from {AUDIT}"),
    ("auditor", f"insert into {AUDIT} (topic, partition, log_offset) values ('t', 0, 0)"),
    ("auditor", "update outrider_audit.tip set chain_seq = 0"),
    ("auditor", "insert into outrider_audit.anchor values ('t', 0, 1, '', now())"),
    ("auditor", "select outrider_audit.expire(365)"),
    ("operator", f"select outrider_audit.append('[{APPENDED}]')"),
    ("operator", "insert into outrider_audit.tombstone (topic) values ('t')"),
    ("worker", f"select outrider_audit.append('[{APPENDED}]')"),
    ("worker", "select outrider_audit.expire(365)"),
    ("auditor", ADMIT),
    ("operator", "update outrider.event set payload = ''"),
    ("operator", "update outrider.delivery set delivery_id = 'other'"),
    ("operator", "update outrider.delivery set attempt = 0"),
    ("operator", "update outrider.dispatch_outbox set payload = ''"),
    ("operator", "insert into outrider.delivery_attempt (delivery_id) values ('x')"),
    ("operator", f"update {AUDIT} set defect = null"),
    ("worker", "select * from outrider.rebuild_deliveries(gen_random_uuid(), '[]', '{}')"),
    ("api", "select * from outrider.rebuild_findings('[]', '{}')"),
]


@pytest.mark.parametrize(("role", "statement"), REFUSED)
def test_role_may_not(act_as: ActAs, role: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        act_as(role, statement)


@pytest.mark.parametrize("role", ROLES)
def test_nobody_makes_tables_in_our_schemas(act_as: ActAs, role: str) -> None:
    for schema in ("outrider", "outrider_audit"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            act_as(role, f"create table {schema}.evil ()")


def test_application_sees_the_status_of_its_own_events_only(role_dsns: dict[str, str], database: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        add_destination(admin)
        add_delivery(admin, "of the administrator", "pending")
    with psycopg.connect(role_dsns["application"], autocommit=True) as application:
        application.execute("select outrider.admit('own', 't', 'x'::bytea, destinations => array['acme'])")
        own = application.execute("select state from outrider.delivery_status('own')").fetchall()
        foreign = application.execute("select * from outrider.delivery_status('of the administrator')").fetchall()
    assert own == [("enqueued",)]
    assert foreign == []


@pytest.mark.parametrize("state", STATE_COLUMNS)
def test_status_says_when_a_delivery_is_looked_at_next(database: str, state: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        add_destination(admin)
        add_delivery(admin, "e", state)
        looked_at_next = admin.execute("select looked_at_next from outrider.delivery_status('e')").fetchone()
    assert looked_at_next is not None
    assert (looked_at_next[0] is None) == (state in ("succeeded", "dead"))
