"""A real Kafka Connect worker in distributed mode, with Debezium's PostgreSQL connector as its plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.stack.child_process import ChildProcess, Command, OnStart
from pipeline.stack.connect_client import ConnectClient
from pipeline.stack.errors import StackError
from pipeline.stack.java_process import java_command, java_environment
from pipeline.stack.kafka_configuration import LOG4J_FILE, log4j_configuration
from pipeline.stack.kafka_jars import connect_class_path, debezium_plugin
from pipeline.stack.locks import lock_within
from pipeline.stack.ports import HOST, choose_ports
from pipeline.stack.readiness import wait_ready

PROPERTIES_FILE = "worker.properties"
PLUGINS_FOLDER = "plugins"
READY_SECONDS = 120.0
STOP_SECONDS = 20.0
# After a SIGKILL the kernel needs a moment to take the process down, and its lock with it.
LOCK_SECONDS = 5.0
# Together with what lies outside the heap, the process stays below 1 GB.
SMALL_HEAP = ("-Xms64m", "-Xmx384m", "-XX:MaxMetaspaceSize=192m", "-XX:+UseSerialGC")


class ConnectServer:
    """A worker on a folder of its own. Its address stays the same over restarts.

    `name` is its group's, and begins the names of its three storage topics. `environment` is what connector
    configurations may read as `${env:NAME}`: secrets go there. `worker` settings go over the ones from here.
    """

    def __init__(
        self,
        directory: Path,
        log: Path,
        *,
        bootstrap_servers: str,
        name: str = "connect",
        environment: Mapping[str, str] | None = None,
        worker: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = SMALL_HEAP,
        on_start: OnStart | None = None,
    ) -> None:
        self.directory = directory
        self.log = log
        self._bootstrap_servers = bootstrap_servers
        self._name = name
        self._environment = dict(environment or {})
        self._worker = dict(worker or {})
        self._jvm_options = tuple(jvm_options)
        self._on_start = on_start
        self._process: ChildProcess | None = None
        self._client: ConnectClient | None = None

    @property
    def process(self) -> ChildProcess:
        """The JVM. Raises StackError before the first start."""
        if self._process is None:
            raise StackError("connect was never started")
        return self._process

    @property
    def client(self) -> ConnectClient:
        """Its REST interface. Raises StackError before the first start."""
        if self._client is None:
            raise StackError("connect was never started")
        return self._client

    def start(self) -> None:
        """Start it and wait until it takes connectors. Raises StackError."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the JVM without waiting for it."""
        options = (*self._jvm_options, f"-Dlog4j2.configurationFile={LOG4J_FILE}")
        java = java_command(connect_class_path(), options)
        plugin = debezium_plugin()
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = lock_within(self.directory / "lock", LOCK_SECONDS)
        if lock is None:
            raise StackError(f"another Connect runs on {self.directory}: end it, or use another folder")
        try:
            self._write_files(plugin)
            if self._process is None:
                command = Command(
                    arguments=[*java, "org.apache.kafka.connect.cli.ConnectDistributed", PROPERTIES_FILE],
                    environment={**java_environment(), **self._environment},
                    directory=self.directory,
                    log=self.log,
                )
                self._process = ChildProcess("connect", command, on_start=self._on_start)
            # The JVM inherits the lock and keeps it as long as it lives, whatever becomes of us.
            self._process.start(keep_open=[lock])
        finally:
            os.close(lock)

    def wait_ready(self) -> None:
        """Return when the worker has joined its group, and so takes connectors. Raises StackError."""
        wait_ready(self.process, self.client.answers, READY_SECONDS)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after a deadline. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.terminate(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()

    def _write_files(self, plugin: Path) -> None:
        (port,) = choose_ports(self.directory / "ports", 1)
        self._client = ConnectClient(f"http://{HOST}:{port}")
        properties = {
            **worker_properties(
                bootstrap_servers=self._bootstrap_servers,
                port=port,
                name=self._name,
                readable_variables=self._environment,
            ),
            **self._worker,
        }
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self.directory / PROPERTIES_FILE).write_text(lines, encoding="ascii")
        (self.directory / LOG4J_FILE).write_text(log4j_configuration(), encoding="ascii")
        # Connect takes each folder below a plugin path for one plugin.
        link = self.directory / PLUGINS_FOLDER / "debezium"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(plugin, target_is_directory=True)


def worker_properties(
    *, bootstrap_servers: str, port: int, name: str, readable_variables: Mapping[str, str] | Sequence[str]
) -> dict[str, str]:
    """One worker, exactly once, on a broker with one node."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "group.id": name,
        "listeners": f"http://{HOST}:{port}",
        "plugin.path": PLUGINS_FOLDER,
        "plugin.discovery": "service_load",
        "exactly.once.source.support": "enabled",
        "connector.client.config.override.policy": "All",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "config.storage.topic": f"{name}.configs",
        "config.storage.replication.factor": "1",
        "offset.storage.topic": f"{name}.offsets",
        "offset.storage.replication.factor": "1",
        "offset.storage.partitions": "1",
        "status.storage.topic": f"{name}.status",
        "status.storage.replication.factor": "1",
        "status.storage.partitions": "1",
        # By default the tasks of a worker that died wait five minutes for it to come back.
        "scheduled.rebalance.max.delay.ms": "0",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "|".join(readable_variables) or "nothing",
    }
