"""Everything that `outrider up` starts: servers, schema, topics, login roles and components."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pipeline.stack.child_process import ChildProcess
from pipeline.stack.component import COMPONENTS, component_process, program, program_environment
from pipeline.stack.embedded import SERVERS, EmbeddedStack
from pipeline.stack.errors import StackError
from pipeline.stack.login_roles import LOGIN_OF_COMPONENT, create_login_roles
from pipeline.stack.ports import HOST, free_ports
from pipeline.stack.process_identity import end_all
from pipeline.stack.readiness import says_ready, wait_ready
from pipeline.stack.run_file import Part, RunRecord

PARTS = (*SERVERS, *COMPONENTS)
PREPARE_SECONDS = 180.0
READY_SECONDS = 90.0
# Longer than a worker's drain, which is 30 s by default.
COMPONENT_STOP_SECONDS = 40.0

# What one broker can hold; the settings' defaults are for a cluster.
ONE_BROKER = MappingProxyType({"topic_replication_factor": 1, "topic_min_insync_replicas": 1})

Announce = Callable[[str], None]


class DevelopmentStack:
    """The servers with the program's components on them, all on one machine.

    `directory` keeps the data (None: temporary); all logs go to `logs`. `only` names the parts to
    start. Components take `settings` (fields of Settings by name), or without them the caller's
    OUTRIDER_ variables, except for what the stack knows better: addresses, replication, logins, ports.
    """

    def __init__(
        self,
        directory: Path | None,
        *,
        logs: Path,
        only: Collection[str] = PARTS,
        workers: int = 1,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        chosen = [name for name in COMPONENTS if name in only]
        missing = [name for name in SERVERS if name not in only]
        if chosen and missing:
            raise StackError(f"{', '.join(chosen)} cannot run without {' and '.join(missing)}")
        self._chosen = chosen
        self._workers = workers
        self._logs = logs
        self._servers = [name for name in SERVERS if name in only]
        self._given_settings = settings
        self.servers = EmbeddedStack(directory, logs=logs, servers=self._servers)
        self._components: list[ChildProcess] = []
        self._dsns: dict[str, str] = {}
        self._api_url: str | None = None

    def start(self, announce: Announce) -> None:
        """Start everything and wait until each part that can tell is ready. Raises StackError."""
        announce(f"starting {' and '.join(self._servers)}")
        self.servers.start()
        try:
            if self._chosen:
                self._prepare(announce)
                self._start_components(announce)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the components, which need the servers for that, and then these."""
        processes = [(one.identity, one.command.stop_signal) for one in reversed(self._components)]
        end_all([(who, how) for who, how in processes if who is not None], COMPONENT_STOP_SECONDS)
        self.servers.stop()

    def detach(self) -> None:
        """Let everything live on after this process."""
        self.servers.detach()

    @property
    def processes(self) -> dict[str, ChildProcess]:
        """Every part by name."""
        servers = self.servers.processes
        return servers | {component.name: component for component in self._components}

    def record(self, supervisor: Part | None) -> RunRecord:
        """What the run file is to say."""
        has_kafka, has_postgres = "kafka" in self._servers, "postgres" in self._servers
        data = {"kafka": self.servers.kafka.directory, "postgres": self.servers.postgres.data_directory}
        return RunRecord(
            postgres_dsn=self.servers.postgres_dsn if has_postgres else None,
            bootstrap_servers=self.servers.bootstrap_servers if has_kafka else None,
            api_url=self._api_url,
            console_url=None,
            dsns=self._dsns,
            parts={name: part_of(process) for name, process in self.processes.items()},
            data={name: str(data[name]) for name in self._servers},
            temporary_folders=[str(folder) for folder in self.servers.temporary_folders],
            supervisor=supervisor,
        )

    def _settings(self) -> dict[str, object]:
        return {
            **(self._given_settings or {}),
            "kafka_bootstrap_servers": self.servers.bootstrap_servers,
            "kafka_security_protocol": "plaintext",
            **ONE_BROKER,
        }

    def _prepare(self, announce: Announce) -> None:
        admin = {**self._settings(), "postgres_dsn": self.servers.postgres_dsn}
        announce("applying migrations")
        self._run_program(admin, "migrate", "up")
        announce("creating topics")
        self._run_program(admin, "topics", "apply")
        logins = create_login_roles(self.servers.postgres_dsn)
        self._dsns = {
            group: self.servers.postgres.dsn_for(user=role, password=password)
            for group, (role, password) in logins.items()
        }

    def _start_components(self, announce: Announce) -> None:
        names = [(component, name) for component in self._chosen for name in self._instances(component)]
        api_port, *health_ports = free_ports(1 + len(names))
        if "api" in self._chosen:
            self._api_url = f"http://{HOST}:{api_port}"
        for (component, name), health_port in zip(names, health_ports, strict=True):
            announce(f"starting {name}")
            settings: dict[str, object] = {
                **self._settings(),
                "postgres_dsn": self._dsns[LOGIN_OF_COMPONENT[component]],
                "api_host": HOST,
                "api_port": api_port,
                "health_host": HOST,
                "health_port": health_port,
            }
            if component == "worker":
                settings["worker_id"] = name
            process = component_process(
                component,
                settings,
                name=name,
                log=self._logs / f"{name}.log",
                inherit_settings=self._given_settings is None,
                on_start=self.servers.watch,
            )
            self._components.append(process)
            process.start()
        for process, health_port in zip(self._components, health_ports, strict=True):
            wait_ready(process, partial(says_ready, health_port), READY_SECONDS)

    def _run_program(self, settings: Mapping[str, object], *arguments: str) -> None:
        environment = program_environment(settings, inherit_settings=self._given_settings is None)
        what = " ".join(("outrider", *arguments))
        try:
            done = subprocess.run(
                program(*arguments),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=PREPARE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"{what} took longer than {PREPARE_SECONDS:g} s") from None
        if done.returncode != 0:
            raise StackError(f"{what} failed: {(done.stderr or done.stdout).strip()}")

    def _instances(self, component: str) -> list[str]:
        if component != "worker":
            return [component]
        return [f"worker-{number}" for number in range(1, self._workers + 1)]


def part_of(process: ChildProcess) -> Part:
    """A process as the run file keeps it. Raises StackError when it has ended already."""
    identity = process.identity
    if identity is None:
        raise StackError(process.death_note())
    return Part(identity.pid, identity.started, int(process.command.stop_signal), str(process.command.log))
