"""The part of Kafka Connect's REST interface that runs one connector."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.stack.errors import StackError

REQUEST_SECONDS = 30.0
POLL_SECONDS = 0.1
# A worker refuses changes with 409 while its group finds together.
BUSY_STATUS = 409
ERROR_CHARACTERS = 2_000
# The worker is on this machine: proxies that the environment names are not asked.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ConnectClient:
    """Asks one worker. Every method raises StackError with Connect's own words when it refuses."""

    def __init__(self, url: str) -> None:
        self.url = url

    def answers(self) -> bool:
        """Whether the worker takes requests about connectors now."""
        try:
            self._request("GET", "/connectors")
        except StackError:
            return False
        return True

    def put(self, name: str, config: Mapping[str, str], seconds: float = REQUEST_SECONDS) -> None:
        """Create a connector, or change it."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._request("PUT", f"/connectors/{name}/config", config)
            except ConnectBusyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return

    def state(self, name: str) -> str:
        """`RUNNING`, `PAUSED`, `STOPPED`, `FAILED`, … of the task, or of the connector while it has none.

        Raises StackError with the task's error when one failed.
        """
        try:
            status = self._request("GET", f"/connectors/{name}/status")
        except StackError as error:
            if isinstance(error.__cause__, urllib.error.HTTPError) and error.__cause__.code == 404:
                return "MISSING"
            raise
        for part in [status["connector"], *status["tasks"]]:
            if part["state"] == "FAILED":
                raise StackError(f"connector {name} failed: {part.get('trace', '')[:ERROR_CHARACTERS]}")
        return str(status["tasks"][0]["state"] if status["tasks"] else status["connector"]["state"] + " WITHOUT TASK")

    def wait_running(self, name: str, seconds: float) -> None:
        """Return when its task runs."""
        self._wait(name, lambda state: state == "RUNNING", seconds)

    def pause(self, name: str, seconds: float = REQUEST_SECONDS) -> None:
        """Keep the task, read nothing."""
        self._request("PUT", f"/connectors/{name}/pause")
        self._wait(name, lambda state: state == "PAUSED", seconds)

    def resume(self, name: str, seconds: float = REQUEST_SECONDS) -> None:
        """Go on after `pause` or `stop`."""
        self._request("PUT", f"/connectors/{name}/resume")
        self.wait_running(name, seconds)

    def stop(self, name: str, seconds: float = REQUEST_SECONDS) -> None:
        """End the task, and so its connection to PostgreSQL; offsets stay."""
        self._request("PUT", f"/connectors/{name}/stop")
        self._wait(name, lambda state: state == "STOPPED WITHOUT TASK", seconds)

    def delete(self, name: str) -> None:
        """Forget the connector; its offsets stay."""
        self._request("DELETE", f"/connectors/{name}")

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """What Connect has stored of its position."""
        return list(self._request("GET", f"/connectors/{name}/offsets")["offsets"])

    def _wait(self, name: str, wanted: Callable[[str], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not wanted(state := self.state(name)):
            if time.monotonic() >= deadline:
                raise StackError(f"connector {name} is {state} after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _request(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310  # our own worker's address
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _DIRECT.open(request, timeout=REQUEST_SECONDS) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            words = error.read().decode(errors="replace")[:ERROR_CHARACTERS]
            kind = ConnectBusyError if error.code == BUSY_STATUS else StackError
            raise kind(f"Connect refused {method} {path}: {error.code} {words}") from error
        except OSError as error:
            raise StackError(f"Connect does not answer {method} {path}: {error}") from error
        return json.loads(text) if text else None


class ConnectBusyError(StackError):
    """The worker's group is finding together: the same request succeeds a moment later."""
