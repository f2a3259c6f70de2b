"""Slot, position and publication at odds, each on the real stack: found, named, and made to agree by ids, so that a
read_committed reader ends with every committed row once.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import psycopg
import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from connectors.errors import ConfigurationError, MissingPublicationError
from connectors.kafka.position import Position, encode_position, position_key, read_position
from connectors.postgres.lsn import parse_lsn
from connectors.start_plan import RefusedStartError, StartCase
from pipeline.stack.embedded import EmbeddedStack
from tests.fixtures.databases import database_name
from tests.support.connector_world import (
    ConnectorWorld,
    assert_exactly_once_in_order,
    drop_slot,
    insert_dispatches,
    wait_until,
    world_of,
)


@pytest.fixture
def world(settings_values: dict[str, object], role_dsns: dict[str, str]) -> ConnectorWorld:
    """Its connectors have the role that the documentation gives them, and may no more."""
    world = world_of(settings_values, postgres_dsn=role_dsns["connector"])
    world.create_topics()
    return world


def publish_and_stop(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    """Rows from before the slot, rows of the stream, and then no connector."""
    insert_dispatches(connection, 40, tag="before-the-slot-")
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 60, tag="streamed-")
        assert_exactly_once_in_order(world, connection)


def make_slot(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [world.config.slot])


def key_of(world: ConnectorWorld, connection: psycopg.Connection) -> bytes:
    return position_key(connection.info.dbname, world.config.slot)


def stored_position(world: ConnectorWorld, connection: psycopg.Connection) -> Position:
    position = read_position(
        world.kafka,
        world.config.positions_topic,
        key_of(world, connection),
        deadline_seconds=30,
        while_waiting=lambda: None,
    )
    assert position is not None
    return position


def store_position(world: ConnectorWorld, connection: psycopg.Connection, position: Position | None) -> None:
    """As an operator would with a producer; None forgets it."""
    producer = Producer(world.kafka)
    value = None if position is None else encode_position(position)
    producer.produce(world.config.positions_topic, value, key_of(world, connection))
    assert producer.flush(30) == 0


def catches_up(world: ConnectorWorld, connection: psycopg.Connection, case: StartCase, **changes: Any) -> int:
    """Start, see that it finds this case, goes on with new rows, and that all is there once.

    Returns how many rows it published before it streamed.
    """
    with capture_logs() as logs, world.connector(**changes) as connector:
        world.streaming(connector)
        caught_up = connector.status.rows
        insert_dispatches(connection, 30, tag="after-")
        assert_exactly_once_in_order(world, connection)
    cases = [entry["case"] for entry in logs if entry["event"] == "starting"]
    assert cases[0] == case.value, cases
    assert cases[-1] == StartCase.AGREED.value
    # The next start has nothing to mend.
    with capture_logs() as logs, world.connector(**changes) as connector:
        world.streaming(connector)
    assert [entry["case"] for entry in logs if entry["event"] == "starting"] == [StartCase.AGREED.value]
    return caught_up


def test_a_slot_that_is_gone_is_made_anew_and_the_missing_rows_are_published(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 50, tag="in-the-gap-")
    assert catches_up(world, connection, StartCase.SLOT_MISSING) == 50


def test_a_slot_that_was_made_anew_at_now_is_ahead_and_the_gap_is_published(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 50, tag="in-the-gap-")
    make_slot(world, connection)
    insert_dispatches(connection, 20, tag="in-the-new-slot-")
    assert catches_up(world, connection, StartCase.SLOT_AHEAD) == 70


def test_an_invalidated_slot_is_replaced(
    world: ConnectorWorld, connection: psycopg.Connection, embedded_stack: EmbeddedStack
) -> None:
    publish_and_stop(world, connection)
    with psycopg.connect(embedded_stack.postgres_dsn, autocommit=True) as admin:
        admin.execute("alter system set max_slot_wal_keep_size = '1MB'")
        admin.execute("select pg_reload_conf()")
        try:
            wait_until(
                lambda: admin.execute("show max_slot_wal_keep_size").fetchone() == ("1MB",), lambda: "it is reloaded"
            )
            insert_dispatches(connection, 50, tag="in-the-gap-")
            for _ in range(4):
                admin.execute(
                    "select pg_switch_wal() from (select pg_logical_emit_message(false, 'filler', 'x')) filler"
                )
            admin.execute("checkpoint")
            assert admin.execute(
                "select wal_status from pg_replication_slots where slot_name = %s", [world.config.slot]
            ).fetchone() == ("lost",)
        finally:
            admin.execute("alter system reset max_slot_wal_keep_size")
            admin.execute("select pg_reload_conf()")
    with (
        pytest.raises(RefusedStartError, match=r"slot invalidated: .* was invalidated"),
        world.connector(repair="refuse") as connector,
    ):
        world.streaming(connector)
    assert catches_up(world, connection, StartCase.SLOT_INVALIDATED) == 50


def test_a_lost_positions_topic_costs_no_row_and_repeats_none(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    admin = AdminClient({"bootstrap.servers": world.settings.kafka_bootstrap_servers})
    topic = world.config.positions_topic
    for deletion in admin.delete_topics([topic], operation_timeout=30).values():
        deletion.result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, lambda: "the topic is gone")
    insert_dispatches(connection, 50, tag="in-the-gap-")
    with pytest.raises(ConfigurationError, match="does not exist"), world.connector() as connector:
        world.streaming(connector)
    world.create_topics()
    assert catches_up(world, connection, StartCase.POSITION_MISSING) == 50


def test_a_forgotten_position_without_a_slot_is_a_first_start_that_repeats_nothing(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    drop_slot(connection, world.config.slot)
    store_position(world, connection, None)
    insert_dispatches(connection, 50, tag="in-the-gap-")
    assert catches_up(world, connection, StartCase.FIRST_START, repair="refuse") == 50


def test_a_position_of_another_system_is_never_trusted(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    publish_and_stop(world, connection)
    position = stored_position(world, connection)
    store_position(world, connection, msgspec.structs.replace(position, system_id="4711"))
    insert_dispatches(connection, 50, tag="in-the-gap-")
    with pytest.raises(RefusedStartError, match=r"another system: .* PostgreSQL system 4711"), world.connector() as one:
        world.streaming(one)
    store_position(world, connection, None)
    assert catches_up(world, connection, StartCase.POSITION_MISSING) == 50


def test_a_position_beyond_the_end_of_the_wal_means_lost_commits_and_is_mended_by_ids(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    position = stored_position(world, connection)
    store_position(world, connection, msgspec.structs.replace(position, lsn=position.lsn + (1 << 40)))
    insert_dispatches(connection, 50, tag="in-the-gap-")
    assert catches_up(world, connection, StartCase.HISTORY_LOST) == 50


def test_a_server_on_an_older_timeline_was_left_behind(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    publish_and_stop(world, connection)
    position = stored_position(world, connection)
    store_position(world, connection, msgspec.structs.replace(position, timeline=position.timeline + 1))
    with pytest.raises(RefusedStartError, match="server left behind"), world.connector() as connector:
        world.streaming(connector)


def test_a_slot_of_another_plugin_is_left_alone(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    connection.execute("select pg_create_physical_replication_slot(%s)", [world.config.slot])
    with pytest.raises(RefusedStartError, match="is physical; configure another slot name"), world.connector() as one:
        world.streaming(one)
    drop_slot(connection, world.config.slot)


def test_rows_written_while_there_was_no_publication_are_published_once_there_is_one(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    connection.execute("drop publication outrider")
    insert_dispatches(connection, 50, tag="in-the-gap-")
    command = r"create publication outrider for table outrider\.dispatch_outbox"
    with pytest.raises(MissingPublicationError, match=command), world.connector() as connector:
        world.streaming(connector)
    make_publication(connection)
    insert_dispatches(connection, 20, tag="in-the-new-publication-")
    assert catches_up(world, connection, StartCase.PUBLICATION_REMADE) == 70


def make_publication(connection: psycopg.Connection) -> None:
    connection.execute(
        "create publication outrider for table outrider.dispatch_outbox, outrider.delivery_attempt"
        " with (publish = 'insert', publish_via_partition_root = true)"
    )


def test_a_table_that_left_the_publication_for_a_while_is_caught_up(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    connection.execute("alter publication outrider drop table outrider.dispatch_outbox")
    insert_dispatches(connection, 50, tag="in-the-gap-")
    connection.execute("alter publication outrider add table outrider.dispatch_outbox")
    assert catches_up(world, connection, StartCase.PUBLICATION_REMADE) == 50


def test_a_publication_that_is_dropped_and_made_again_under_a_running_connector_costs_no_row(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    with world.connector(publication_watch_seconds=0.1, idle_position_seconds=0.2) as connector:
        world.streaming(connector)
        connection.execute("drop publication outrider")
        insert_dispatches(connection, 50, tag="in-the-gap-")
        wait_until(
            lambda: "publication outrider does not exist" in connector.status.ready(time.monotonic())[1],
            lambda: f"readiness names it ({connector.status})",
        )
        make_publication(connection)
        assert_exactly_once_in_order(world, connection)
        world.streaming(connector)


def test_catching_up_goes_on_by_ids_wherever_it_is_cut_off(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    publish_and_stop(world, connection)
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 3_000, tag="in-the-gap-")
    for part in range(1, 4):
        with world.connector(transaction_rows=50) as connector:
            wait_until(
                lambda: connector.status.rows >= 50 or connector.status.state == "streaming",
                lambda: f"part {part} is published ({connector.status})",  # noqa: B023
            )
    assert len(world.read("dispatch")) > 100
    with world.connector() as connector:
        world.streaming(connector)
        assert_exactly_once_in_order(world, connection)


def test_a_row_in_quarantine_is_not_missing(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    with world.connector() as connector:
        world.streaming(connector)
        insert_dispatches(connection, 1, tag="huge-", payload_bytes=5 * 1024 * 1024)
        insert_dispatches(connection, 10, tag="small-")
        world.read_when("dispatch", 10)
        world.read_when("quarantine", 1)
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 5, tag="in-the-gap-")
    with world.connector() as connector:
        world.streaming(connector)
        assert (connector.status.rows, connector.status.quarantined) == (5, 0)
    assert len(world.read("dispatch")) == 15
    assert len(world.read("quarantine")) == 1


def test_rows_whose_records_retention_has_dropped_are_not_published_again(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    connection.execute(
        """
        insert into outrider.dispatch_outbox (created_at, message_id, delivery_id, dispatch_seq, destination_id, event_id,
                                              event_type, content_type, headers, payload, reason)
        select clock_timestamp() - interval '40 days', gen_random_uuid(), 'old-' || n, n, 'destination 1', 'event',
               'test.event', 'text/plain', '{}', 'x', 'admitted'
        from generate_series(1, 20) n
        """
    )
    with world.connector() as connector:
        world.streaming(connector)
        world.read_when("dispatch", 20)
    # What retention does to old segments, done to these.
    admin = AdminClient({"bootstrap.servers": world.settings.kafka_bootstrap_servers})
    topic = world.settings.name("dispatch")
    delete_all_records(admin, topic)
    assert world.read("dispatch") == []
    drop_slot(connection, world.config.slot)
    insert_dispatches(connection, 30, tag="in-the-gap-")
    with world.connector() as connector:
        world.streaming(connector)
        assert connector.status.rows == 30
    assert {record.headers["delivery_id"][:4] for record in world.read("dispatch")} == {b"in-t"}


def delete_all_records(admin: AdminClient, topic: str) -> None:
    partitions = admin.list_topics(topic, timeout=30).topics[topic].partitions
    for deletion in admin.delete_records([TopicPartition(topic, number, OFFSET_END) for number in partitions]).values():
        deletion.result(30)


def test_a_refusal_by_policy_changes_nothing(world: ConnectorWorld, connection: psycopg.Connection) -> None:
    publish_and_stop(world, connection)
    before = stored_position(world, connection)
    drop_slot(connection, world.config.slot)
    make_slot(world, connection)
    state = "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s"
    slot_before = connection.execute(state, [world.config.slot]).fetchone()
    with pytest.raises(RefusedStartError, match="slot ahead of the position"), world.connector(repair="refuse") as one:
        world.streaming(one)
    assert stored_position(world, connection) == before
    assert connection.execute(state, [world.config.slot]).fetchone() == slot_before
    assert slot_before is not None
    assert parse_lsn(slot_before[0]) > before.lsn
    assert database_name(world.settings.postgres_conninfo) == before.database


def test_the_new_slot_survives_a_failover_where_the_server_can(
    world: ConnectorWorld, connection: psycopg.Connection
) -> None:
    if connection.info.server_version < 170_000:
        pytest.skip("slots are copied to standbys since PostgreSQL 17")
    publish_and_stop(world, connection)
    slot = connection.execute(
        "select failover, two_phase, temporary from pg_replication_slots where slot_name = %s", [world.config.slot]
    ).fetchone()
    assert slot == (True, False, False)
