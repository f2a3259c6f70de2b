"""Kafka fails, refuses or forgets; the connector recovers alone.

After each fault a read_committed reader finds every committed row once, no other, and the order of each key, and while
it lasted, readiness told of it. That Kafka is away for longer than every time-out is in test_connector_kills.py.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not declared so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)

from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.guard import Guard
from pipeline.stack.kafka_server import KafkaServer
from tests.support.connector_world import wait_until, world_of
from tests.support.fault_world import FaultWorld, wait_not_ready
from tests.support.file_size_limit import file_size_limit

ADMIN_SECONDS = 30.0
MIB = 1024 * 1024
# Everybody may do everything that no rule is about, so that a test forbids one thing at a time.
WITH_RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture
def faults(settings_values: dict[str, object], database: str) -> FaultWorld:
    world = world_of(settings_values)
    world.create_topics()
    return FaultWorld(world, database)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory, guard: Guard) -> Iterator[KafkaServer]:
    """A broker that keeps rules, and that may be ruined."""
    folder = tmp_path_factory.mktemp("kafka")
    server = KafkaServer(folder / "data", folder / "kafka.log", on_start=guard.end, settings=WITH_RULES, is_brief=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_faults(
    settings_values: dict[str, object], database: str, embedded_stack: EmbeddedStack, own_broker: KafkaServer
) -> FaultWorld:
    world = world_of({**settings_values, "kafka_bootstrap_servers": own_broker.bootstrap_servers})
    world.create_topics()
    return FaultWorld(world, database)


def admin_of(faults: FaultWorld) -> AdminClient:
    return AdminClient({**faults.world.kafka, "log_level": 0})


def set_topic(faults: FaultWorld, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(
        name, value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(faults)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(ADMIN_SECONDS)


def rule(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission)


def test_a_broker_that_hangs_is_told_of_and_waited_for(faults: FaultWorld, embedded_stack: EmbeddedStack) -> None:
    with faults.connector() as connector:
        faults.write()
        pid = embedded_stack.kafka.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            faults.write()
            wait_not_ready(connector, "Kafka")
        finally:
            os.kill(pid, signal.SIGCONT)
        faults.judge(connector)


def test_a_topic_that_is_deleted_is_named_and_rows_go_on_when_it_is_there_again(faults: FaultWorld) -> None:
    topic = faults.world.settings.name("dispatch")
    with faults.connector() as connector:
        admin = admin_of(faults)
        for deleted in admin.delete_topics([topic], operation_timeout=ADMIN_SECONDS).values():
            deleted.result(ADMIN_SECONDS)
        faults.write()
        assert topic in wait_not_ready(connector, "does not exist")
        create_topics_again(faults)
        faults.judge(connector)


def create_topics_again(faults: FaultWorld) -> None:
    """The deletion is finished some time after it was confirmed."""

    def created() -> bool:
        try:
            faults.world.create_topics()
        except Exception as error:
            if "already exists" in str(error) or "TOPIC_ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    wait_until(created, lambda: "the topic can be made again")


def test_a_record_that_the_broker_refuses_for_its_size_is_quarantined_although_it_fitted_before(
    faults: FaultWorld,
) -> None:
    with faults.connector() as connector:
        faults.write()
        set_topic(faults, faults.world.settings.name("dispatch"), "max.message.bytes", str(MIB))
        # Random, because the broker looks at what is left of it when it is compressed.
        (refused,) = faults.write(1, more=random.randbytes(2 * MIB))
        faults.judge(connector, quarantined=[refused])


@pytest.mark.parametrize(
    ("kind", "part", "operation"),
    [
        (ResourceType.TOPIC, "dispatch", AclOperation.WRITE),
        (ResourceType.TOPIC, "positions", AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, "id", AclOperation.WRITE),
    ],
)
def test_what_is_forbidden_is_named_and_rows_flow_once_it_is_allowed(
    own_faults: FaultWorld, kind: ResourceType, part: str, operation: AclOperation
) -> None:
    config, admin = own_faults.world.config, admin_of(own_faults)
    name = {"dispatch": own_faults.world.settings.name("dispatch"), "positions": config.positions_topic}.get(
        part, config.transactional_id
    )
    # What no rule allows is forbidden once there is a rule for the name.
    rules = [
        rule(kind, name, AclOperation.ALL, AclPermissionType.ALLOW),
        rule(kind, name, operation, AclPermissionType.DENY),
    ]
    with own_faults.connector() as connector:
        own_faults.write()
        for made in admin.create_acls(rules).values():
            made.result(ADMIN_SECONDS)
        end_session(own_faults)
        own_faults.write()
        wait_not_ready(connector, "does not allow")
        every = AclBindingFilter(
            kind, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        for removed in admin.delete_acls([every]).values():
            removed.result(ADMIN_SECONDS)
        own_faults.judge(connector)


def end_session(faults: FaultWorld) -> None:
    """Some permissions are asked for at the start of a session only."""
    with psycopg.connect(faults.database, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
            [faults.world.config.slot],
        )


def test_a_broker_whose_disk_is_full_ends_and_rows_go_on_when_it_is_back(
    own_faults: FaultWorld, own_broker: KafkaServer
) -> None:
    with own_faults.connector() as connector:
        own_faults.write()
        with file_size_limit(own_broker.process.pid, 64 * 1024):
            own_faults.write(5_000)
            wait_until(lambda: not own_broker.process.is_running, lambda: "the broker gives up")
        wait_not_ready(connector, "Kafka")
        own_broker.start()
        own_faults.judge(connector)
