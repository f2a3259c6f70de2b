"""The receiver as a child process, with its configuration in a file that only we can read."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pipeline.demo.receiver import Hook, ReceiverConfig
from pipeline.demo.wire import LIVE_PATH
from pipeline.stack.child_process import ChildProcess, Command, OnStart
from pipeline.stack.ports import HOST, free_ports
from pipeline.stack.readiness import wait_ready

READY_SECONDS = 20.0
PROBE_SECONDS = 1.0
STOP_SECONDS = 5.0


class ReceiverProcess:
    """`start` it again after `kill`: it goes on with the same port and record.

    Everything is in `folder`: the configuration, the record of receipts, the log.
    """

    def __init__(self, hooks: Mapping[str, Hook], folder: Path, *, on_start: OnStart | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.receipts = folder / "receipts.jsonl"
        (self._port,) = free_ports(1)
        config = ReceiverConfig(host=HOST, port=self._port, receipts=str(self.receipts), hooks=dict(hooks))
        config_file = folder / "receiver.json"
        with os.fdopen(os.open(config_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(config))
        command = Command(
            arguments=[sys.executable, "-P", "-m", "pipeline.demo.receiver", str(config_file)],
            environment=os.environ,
            directory=folder,
            log=folder / "receiver.log",
        )
        self.process = ChildProcess("receiver", command, on_start=on_start)

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers. Raises StackError."""
        self.process.start()
        wait_ready(self.process, self._answers, READY_SECONDS)

    def stop(self) -> None:
        """End it; nothing happens when it does not run."""
        self.process.terminate(STOP_SECONDS)

    def kill(self) -> None:
        self.process.kill()

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", LIVE_PATH)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
