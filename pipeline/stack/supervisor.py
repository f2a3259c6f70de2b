"""`outrider up`, `down` and `status` on one folder: who may start, who is running, what has died."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.stack.child_process import death_note
from pipeline.stack.development_stack import COMPONENT_STOP_SECONDS, PARTS, Announce, DevelopmentStack
from pipeline.stack.embedded import SERVERS
from pipeline.stack.errors import StackError
from pipeline.stack.locks import locked
from pipeline.stack.process_identity import end_all, identity_of
from pipeline.stack.run_file import (
    Part,
    RunRecord,
    read_run_file,
    remove_run_file,
    state_folder,
    write_run_file,
)

SERVER_STOP_SECONDS = 20.0
# A foreground `up` that is asked to end stops components, then servers.
SUPERVISOR_STOP_SECONDS = COMPONENT_STOP_SECONDS + 2 * SERVER_STOP_SECONDS + 10
WATCH_SECONDS = 0.2
LOCK_FILE = "up.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class UpOptions:
    """What `up` is to start. `is_temporary` data goes away at the end."""

    is_temporary: bool = False
    workers: int = 1
    only: Collection[str] = PARTS


class RunsAlreadyError(StackError):
    """Another `up` has started the stack of this folder, and it runs."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__("the stack of this folder runs already")
        self.record = record


def up(folder: Path, options: UpOptions, announce: Announce) -> RunRecord:
    """Start the stack, let it live on, and return where it answers.

    Raises RunsAlreadyError, or StackError when it cannot start (nothing is left running then).
    """
    stack, record = _start(folder, options, announce, is_foreground=False)
    stack.detach()
    return record


def up_in_foreground(
    folder: Path, options: UpOptions, announce: Announce, on_ready: Callable[[RunRecord], None]
) -> bool:
    """Start the stack and watch over it until SIGINT or SIGTERM; then end it.

    Each part that dies is announced at once, with the end of its log; the others go on. Returns
    whether all parts lived until the end. Raises as `up` does.
    """
    with _signals_as_interrupts():
        stack, record = _start(folder, options, announce, is_foreground=True)
        reported: set[str] = set()
        try:
            on_ready(record)
            while len(reported) < len(record.parts):
                time.sleep(WATCH_SECONDS)
                for name, process in stack.processes.items():
                    if not process.is_running and name not in reported:
                        reported.add(name)
                        announce(process.death_note())
        except KeyboardInterrupt:
            announce("ending")
        finally:
            _without_interrupts(stack.stop)
            remove_run_file(state_folder(folder))
        return not reported


def down(folder: Path) -> list[str]:
    """End what `up` started in the folder, and only that; returns the names of the parts ended."""
    state = state_folder(folder)
    with _only_one(state):
        record = read_run_file(state)
        if record is None:
            return []
        names = [name for name, part in record.parts.items() if part.is_alive]
        if record.supervisor is not None:
            end_all([record.supervisor.ending], SUPERVISOR_STOP_SECONDS)
        components = [part.ending for name, part in record.parts.items() if name not in SERVERS]
        servers = [part.ending for name, part in record.parts.items() if name in SERVERS]
        end_all(components[::-1], COMPONENT_STOP_SECONDS)
        end_all(servers, SERVER_STOP_SECONDS)
        _clean_up(state, record)
        return names


def status(folder: Path) -> tuple[RunRecord | None, list[str]]:
    """The record of the folder's stack, if any, and a note for each part of it that has died."""
    record = read_run_file(state_folder(folder))
    if record is None:
        return None, []
    notes = [death_note(name, None, Path(part.log)) for name, part in record.dead_parts.items()]
    return record, notes


def _start(
    folder: Path, options: UpOptions, announce: Announce, *, is_foreground: bool
) -> tuple[DevelopmentStack, RunRecord]:
    state = state_folder(folder)
    with _only_one(state):
        earlier = read_run_file(state)
        if earlier is not None:
            if earlier.is_alive:
                raise RunsAlreadyError(earlier)
            announce("the last stack of this folder ended without `outrider down`: cleaning up")
            _clean_up(state, earlier)
        logs = state / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        stack = DevelopmentStack(
            None if options.is_temporary else state,
            logs=logs,
            only=options.only,
            workers=options.workers,
        )
        stack.start(announce)
        try:
            record = stack.record(_this_process(state) if is_foreground else None)
            write_run_file(state, record)
        except BaseException:
            stack.stop()
            raise
    return stack, record


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
    with locked(state / LOCK_FILE, 0) as held:
        if not held:
            raise StackError(f"another outrider up or down is at work in {state.parent}: wait until it is done")
        yield


def _clean_up(state: Path, record: RunRecord) -> None:
    for folder in record.temporary_folders:
        shutil.rmtree(folder, ignore_errors=True)
    remove_run_file(state)


def _this_process(state: Path) -> Part:
    identity = identity_of(os.getpid())
    if identity is None:
        raise StackError("/proc does not show this process: the stack needs Linux's /proc")
    return Part(identity.pid, identity.started, int(signal.SIGTERM), str(state / "logs"))


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt like Ctrl-C does, so that both end the parts in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _without_interrupts(action: Callable[[], None]) -> None:
    """Run to the end even if Ctrl-C is pressed again; everything in it has a deadline."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        action()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
