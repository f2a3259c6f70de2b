"""The files that a single-node broker reads. Paths in them are relative to its folder, so that
no character of the folder's own path can have a meaning in Java's properties format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeline.stack.ports import HOST

PROPERTIES_FILE = "server.properties"
LOG4J_FILE = "log4j2.properties"
DATA_FOLDER = "data"


def server_properties(*, port: int, controller_port: int, more: Mapping[str, object] = MappingProxyType({})) -> str:
    """Broker and controller in one process, everything with one replica; ``more`` goes over it."""
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"CLIENTS://{HOST}:{port}",
        "inter.broker.listener.name": "CLIENTS",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": DATA_FOLDER,
        # The topics of this project are declared; a misspelt name must fail, not make a topic.
        "auto.create.topics.enable": "false",
        # One node holds every copy.
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        # Tests lose members on purpose and wait for the group to notice.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        # A killed broker comes back only after its old session has run out.
        "broker.heartbeat.interval.ms": 1_000,
        "broker.session.timeout.ms": 5_000,
        # The default of 128 MiB would be a quarter of the heap, for topics of a few thousand keys.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    return "".join(f"{name}={value}\n" for name, value in {**settings, **more}.items())


def log4j_configuration() -> str:
    """Everything from INFO on to standard error, which is the broker's log file."""
    return """\
status = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %-5p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
"""
