"""`.outrider/run.json`: what `outrider up` started in a folder, and where it answers."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pipeline.stack.errors import StackError
from pipeline.stack.process_identity import ProcessIdentity

STATE_FOLDER = ".outrider"
RUN_FILE = "run.json"


class Part(msgspec.Struct, frozen=True):
    """One process. `started` tells it from a later one with the same pid."""

    pid: int
    started: str
    stop_signal: int
    log: str

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started)

    @property
    def is_alive(self) -> bool:
        return self.identity.is_alive

    @property
    def ending(self) -> tuple[ProcessIdentity, signal.Signals]:
        """The process with the signal that asks it to end."""
        return self.identity, signal.Signals(self.stop_signal)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the run file. Addresses are null for what does not run."""

    postgres_dsn: str | None
    bootstrap_servers: str | None
    api_url: str | None
    console_url: str | None
    dsns: dict[str, str]
    parts: dict[str, Part]
    data: dict[str, str]
    """Folder of each server's data."""
    temporary_folders: list[str]
    """To be removed at the end; empty when the data is kept."""
    supervisor: Part | None
    """The `outrider up` in the foreground, which ends the parts itself when it is asked to end."""

    @property
    def is_alive(self) -> bool:
        """Whether anything of it still runs."""
        return any(part.is_alive for part in self.all_parts.values())

    @property
    def dead_parts(self) -> dict[str, Part]:
        return {name: part for name, part in self.parts.items() if not part.is_alive}

    @property
    def all_parts(self) -> Mapping[str, Part]:
        return self.parts if self.supervisor is None else {**self.parts, "supervisor": self.supervisor}


def state_folder(folder: Path) -> Path:
    """Make and return the folder for everything that `up` keeps in `folder`."""
    state = folder.absolute() / STATE_FOLDER
    try:
        state.mkdir(mode=0o711, exist_ok=True)
        # Whatever repository this is in, passwords and data must not be committed.
        (state / ".gitignore").write_text("*\n", encoding="ascii")
    except OSError as error:
        raise StackError(f"cannot write {state}: {error.strerror}; run outrider in a folder of yours") from error
    return state


def read_run_file(state: Path) -> RunRecord | None:
    """The record, or None when there is none. Raises StackError when it is not ours to read."""
    path = state / RUN_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StackError(f"cannot read {path}: {error.strerror}; use the user who started the stack") from error
    try:
        return msgspec.json.decode(content, type=RunRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StackError(f"{path} is damaged ({error}): end its processes by hand and remove it") from error


def write_run_file(state: Path, record: RunRecord) -> None:
    """Replace the record at once; only the user may read it, since it holds passwords."""
    descriptor, scratch = tempfile.mkstemp(prefix=f"{RUN_FILE}.", dir=state)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        Path(scratch).replace(state / RUN_FILE)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def remove_run_file(state: Path) -> None:
    """Forget the record."""
    (state / RUN_FILE).unlink(missing_ok=True)
