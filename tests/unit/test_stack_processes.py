"""Processes are known by pid and start, ended within deadlines, and explained when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.stack.child_process import ChildProcess, Command
from pipeline.stack.errors import StackError
from pipeline.stack.guard import carry_out
from pipeline.stack.process_identity import ProcessIdentity, end_all, identity_of

IGNORES_SIGTERM = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


def python(code: str, tmp_path: Path) -> ChildProcess:
    command = Command(
        arguments=[sys.executable, "-I", "-c", code],
        environment=dict(os.environ),
        directory=tmp_path,
        log=tmp_path / "log",
    )
    return ChildProcess("part", command)


def deaf_process(tmp_path: Path) -> ChildProcess:
    process = python(IGNORES_SIGTERM, tmp_path)
    process.start()
    while not process.log_tail():
        assert process.is_running
    return process


def test_this_process_is_itself() -> None:
    identity = identity_of(os.getpid())
    assert identity is not None
    assert identity.is_alive


def test_other_process_under_a_reused_pid_is_not_taken_for_the_first() -> None:
    earlier = ProcessIdentity(os.getpid(), "another boot/1")
    assert not earlier.is_alive
    assert not earlier.send(signal.SIGKILL)


def test_zombie_counts_as_dead() -> None:
    child = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    identity = identity_of(child.pid)
    assert identity is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped
    assert not identity.is_alive
    child.communicate()


def test_process_that_ignores_its_signal_is_killed_after_the_deadline(tmp_path: Path) -> None:
    process = deaf_process(tmp_path)
    assert process.terminate(0.1) == -signal.SIGKILL


def test_end_all_names_the_processes_that_needed_sigkill(tmp_path: Path) -> None:
    process = deaf_process(tmp_path)
    assert process.identity is not None
    assert end_all([(process.identity, signal.SIGTERM)], 0.1) == [process.pid]
    assert process.wait(10) == -signal.SIGKILL
    assert end_all([(process.identity, signal.SIGTERM)], 0.1) == []


def test_death_note_has_exit_status_and_the_end_of_the_log(tmp_path: Path) -> None:
    process = python(
        "import sys; [print('line', n, file=sys.stderr) for n in range(100)]; sys.exit('no disk')", tmp_path
    )
    process.start()
    process.wait(30)
    note = process.death_note()
    assert note.startswith("part ended with exit status 1; the end of ")
    assert note.endswith("  | no disk")
    assert "  | line 99" in note
    assert "line 50" not in note


def test_start_of_a_missing_program_is_one_line(tmp_path: Path) -> None:
    command = Command(arguments=[str(tmp_path / "absent")], environment={}, directory=tmp_path, log=tmp_path / "log")
    with pytest.raises(StackError, match=r"^cannot start part: .*absent"):
        ChildProcess("part", command).start()


def test_process_starts_again_after_a_kill_but_not_beside_itself(tmp_path: Path) -> None:
    process = python("import signal; signal.pause()", tmp_path)
    process.start()
    first = process.pid
    with pytest.raises(StackError, match="runs already"):
        process.start()
    process.kill()
    process.start()
    assert process.pid != first
    assert process.is_running
    process.kill()


def test_guard_ends_processes_and_removes_folders_but_no_stranger(tmp_path: Path) -> None:
    process = python("import signal; signal.pause()", tmp_path)
    process.start()
    folder = tmp_path / "temporary" / "data"
    folder.mkdir(parents=True)
    assert process.identity is not None
    carry_out(
        [
            f'{{"remove": "{folder.parent}"}}',
            f'{{"pid": {process.pid}, "started": "{process.identity.started}", "signal": 15}}',
            f'{{"pid": {os.getpid()}, "started": "another boot/1", "signal": 9}}',
        ]
    )
    assert process.wait(10) == -signal.SIGTERM
    assert not folder.parent.exists()


def test_released_guard_leaves_everything_alone(tmp_path: Path) -> None:
    process = python("import signal; signal.pause()", tmp_path)
    process.start()
    assert process.identity is not None
    carry_out(
        [
            f'{{"remove": "{tmp_path}"}}',
            f'{{"pid": {process.pid}, "started": "{process.identity.started}", "signal": 15}}',
            '{"release": true}',
        ]
    )
    assert process.is_running
    assert tmp_path.exists()
    process.kill()
