"""One child process with a log file: started, stopped within deadlines, asked why it died."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.stack.errors import StackError
from pipeline.stack.process_identity import ProcessIdentity, identity_of
from pipeline.stack.system_user import SystemUser

KILL_SECONDS = 10.0
TAIL_LINES = 20
TAIL_BYTES = 64 * 1024

# Told of every process that starts, with the signal that asks it to end.
OnStart = Callable[[ProcessIdentity, signal.Signals], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What to run. Secrets belong into `environment`, never into `arguments`."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    user: SystemUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM


class ChildProcess:
    """A process that is started anew any number of times; never two at once.

    It runs in a session of its own, so that Ctrl-C on the terminal reaches only its parent, which
    ends the parts in order.
    """

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        on_start: OnStart | None = None,
    ) -> None:
        self.name = name
        self.command = command
        self._on_start = on_start
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: ProcessIdentity | None = None

    def start(self, command: Command | None = None, *, keep_open: Sequence[int] = ()) -> None:
        """Start it, from now on with another command if one is given.

        `keep_open` are descriptors that it inherits. Raises StackError if it cannot run.
        """
        if self.is_running:
            raise StackError(f"{self.name} runs already with pid {self.pid}")
        command = self.command = command or self.command
        command.log.parent.mkdir(parents=True, exist_ok=True)
        credentials = command.user.popen_arguments() if command.user else {}
        try:
            with command.log.open("ab") as log:
                self._process = subprocess.Popen(
                    list(command.arguments),
                    env=dict(command.environment),
                    cwd=command.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=keep_open,
                    **credentials,
                )
        except OSError as error:
            raise StackError(f"cannot start {self.name}: {error}") from error
        self._identity = identity_of(self._process.pid)
        if self._on_start is not None and self._identity is not None:
            self._on_start(self._identity, command.stop_signal)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the last start. Raises StackError before the first."""
        if self._process is None:
            raise StackError(f"{self.name} was never started")
        return self._process.pid

    @property
    def identity(self) -> ProcessIdentity | None:
        """The last start's process, or None if there was none (or it ended at once)."""
        return self._identity

    @property
    def exit_status(self) -> int | None:
        """Exit code, negative signal number, or None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL it and wait for its end; nothing happens when it does not run."""
        if self._process is not None and self.is_running:
            self._process.kill()
            self._process.wait(KILL_SECONDS)

    def terminate(self, deadline_seconds: float) -> int | None:
        """Ask it to end; SIGKILL after the deadline. Returns its exit status (None: never started)."""
        if self._process is None:
            return None
        if self.is_running:
            self._process.send_signal(self.command.stop_signal)
            try:
                self._process.wait(deadline_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.exit_status

    def wait(self, seconds: float) -> int:
        """Wait for its own end and return the exit status. Raises StackError after `seconds`."""
        if self._process is None:
            raise StackError(f"{self.name} was never started")
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise StackError(f"{self.name} (pid {self.pid}) still runs after {seconds:g} s") from None

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of its log, over all starts."""
        return log_tail(self.command.log, lines)

    def death_note(self) -> str:
        """Why it is not running: exit status and the end of its log."""
        status = self.exit_status
        return death_note(self.name, status, self.command.log)


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log file, reading at most `TAIL_BYTES`; empty when there is none."""
    try:
        with log.open("rb") as content:
            size = content.seek(0, 2)
            content.seek(max(0, size - TAIL_BYTES))
            text = content.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def death_note(name: str, status: int | None, log: Path) -> str:
    """A report of a part that died: how, and the last lines of its log, indented."""
    how = "ended" if status is None else describe_exit(status)
    tail = log_tail(log)
    if not tail:
        return f"{name} {how}; its log {log} is empty"
    indented = "\n".join(f"  | {line}" for line in tail.splitlines())
    return f"{name} {how}; the end of {log}:\n{indented}"


def describe_exit(status: int) -> str:
    """Exit status in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
