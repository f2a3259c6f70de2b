"""The run file: private, whole, and honest about what has died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.stack.errors import StackError
from pipeline.stack.process_identity import identity_of
from pipeline.stack.run_file import (
    Part,
    RunRecord,
    read_run_file,
    remove_run_file,
    state_folder,
    write_run_file,
)


def record_of(**parts: Part) -> RunRecord:
    return RunRecord(
        postgres_dsn="postgresql://postgres:secret@127.0.0.1:1/outrider",
        bootstrap_servers="127.0.0.1:2",
        api_url=None,
        console_url=None,
        dsns={},
        parts=parts,
        data={},
        temporary_folders=[],
        supervisor=None,
    )


def this_process() -> Part:
    identity = identity_of(os.getpid())
    assert identity is not None
    return Part(identity.pid, identity.started, 15, "log")


def test_record_is_read_as_written_and_only_by_its_user(tmp_path: Path) -> None:
    state = state_folder(tmp_path)
    umask = os.umask(0)
    try:
        write_run_file(state, record_of(kafka=this_process()))
    finally:
        os.umask(umask)
    assert read_run_file(state) == record_of(kafka=this_process())
    assert (state / "run.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in state.iterdir()) == [".gitignore", "run.json"]
    remove_run_file(state)
    remove_run_file(state)
    assert read_run_file(state) is None


def test_part_whose_pid_was_reused_is_dead() -> None:
    reused = Part(os.getpid(), "another boot/1", 15, "log")
    record = record_of(kafka=this_process(), postgres=reused)
    assert record.is_alive
    assert record.dead_parts == {"postgres": reused}
    assert not record_of(postgres=reused).is_alive


@pytest.mark.parametrize("content", [b"", b"{", b'{"parts": {}}', b"\xff"])
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    state = state_folder(tmp_path)
    (state / "run.json").write_bytes(content)
    with pytest.raises(StackError, match=r"run\.json is damaged"):
        read_run_file(state)
