"""`outrider up`, `down` and `status` as processes, on real servers.

Most tests start PostgreSQL alone: what they are about is the same for every part, and it starts in
a second.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline.stack.component import program
from pipeline.stack.locks import try_lock
from pipeline.stack.process_identity import identity_of
from pipeline.stack.run_file import read_run_file

DEADLINE_SECONDS = 120.0
ONLY_POSTGRES = ("--only", "postgres")


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a space in its name; what a test started in it is ended afterwards."""
    # Not tmp_path: its parents are closed to the user who runs PostgreSQL for root.
    path = Path(tempfile.mkdtemp(prefix="outrider test-"))
    path.chmod(0o711)
    yield path
    outrider(path, "down")
    shutil.rmtree(path)


def outrider(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(*arguments), cwd=folder, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    log = (folder / "output").open("a")
    with log:
        return subprocess.Popen(program(*arguments), cwd=folder, stdout=log, stderr=log, text=True)


def run_file(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / ".outrider" / "run.json").read_text())
    return content


def pid_of(folder: Path, part: str) -> int:
    return int(run_file(folder)["parts"][part]["pid"])


def is_gone(pid: int) -> bool:
    return identity_of(pid) is None


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        time.sleep(0.05)


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_up_writes_addresses_that_answer_and_down_ends_them(folder: Path) -> None:
    done = outrider(folder, "up", "--only", "kafka,postgres")
    assert done.returncode == 0, done.stderr
    record = run_file(folder)
    assert answers(record["postgres_dsn"])
    assert record["bootstrap_servers"] in done.stdout
    assert (folder / ".outrider" / "run.json").stat().st_mode & 0o777 == 0o600
    assert outrider(folder, "status").returncode == 0

    pids = [part["pid"] for part in record["parts"].values()]
    assert len(pids) == 2
    assert not any(map(is_gone, pids))
    assert outrider(folder, "down").returncode == 0
    assert all(map(is_gone, pids))
    assert outrider(folder, "status").returncode == 1


def test_up_runs_every_component_and_names_the_one_that_is_killed(folder: Path) -> None:
    done = outrider(folder, "up", "--ephemeral", "--workers", "2")
    assert done.returncode == 0, done.stderr
    record = run_file(folder)
    components = {"connector", "worker-1", "worker-2", "reconciler", "audit", "api"}
    assert set(record["parts"]) == {"kafka", "postgres"} | components
    assert all(map(answers, record["dsns"].values()))
    with urllib.request.urlopen(f"{record['api_url']}/readyz", timeout=10) as ready:
        assert ready.status == 200

    # The other commands find the stack by what `status --export` has a shell read.
    exported = shlex.join(program("status", "--export"))
    asked = shlex.join(program("destination", "list", "--json"))
    done = subprocess.run(
        ["bash", "-c", f'eval "$({exported})" && {asked}'],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr
    assert "_reconciler:" in outrider(folder, "status", "--export", "--login", "reconciler").stdout
    assert outrider(folder, "status", "--export", "--login", "nobody").returncode == 2
    by_application = outrider(folder, "psql", "--login", "application", "-Atc", "select current_user")
    assert by_application.stdout == conninfo_to_dict(record["dsns"]["application"])["user"] + "\n"

    os.kill(pid_of(folder, "worker-2"), signal.SIGKILL)
    eventually(lambda: is_gone(pid_of(folder, "worker-2")), "the killed worker is gone")
    status = outrider(folder, "status", "--json")
    assert status.returncode == 1
    assert json.loads(status.stdout)["dead"] == ["worker-2"]
    assert outrider(folder, "down").returncode == 0
    assert all(is_gone(part["pid"]) for part in record["parts"].values())


def test_no_secret_is_shown_on_the_terminal_or_in_a_command_line(folder: Path) -> None:
    done = outrider(folder, "up", *ONLY_POSTGRES)
    password = psycopg.conninfo.conninfo_to_dict(run_file(folder)["postgres_dsn"])["password"]
    assert isinstance(password, str)
    assert len(password) >= 20
    assert password not in done.stdout + done.stderr + outrider(folder, "status").stdout
    assert password.encode() not in Path(f"/proc/{pid_of(folder, 'postgres')}/cmdline").read_bytes()


def test_psql_is_the_owners_and_shows_no_password_to_others(folder: Path) -> None:
    refused = outrider(folder, "psql")
    assert (refused.returncode, "outrider up starts it" in refused.stderr) == (1, True)
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    asked = outrider(folder, "psql", "-At", "-c", "select current_user", "-c", r"\! tr '\0' ' ' < /proc/$PPID/cmdline")
    owner = conninfo_to_dict(run_file(folder)["postgres_dsn"])
    assert asked.stdout.startswith(f"{owner['user']}\n"), asked.stderr
    assert "current_user" in asked.stdout
    assert str(owner["password"]) not in asked.stdout
    unknown = outrider(folder, "psql", "--login", "nobody")
    assert (unknown.returncode, "--login nobody" in unknown.stderr) == (2, True)


def test_second_up_says_that_the_stack_runs_already(folder: Path) -> None:
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    pid = pid_of(folder, "postgres")
    second = outrider(folder, "up", *ONLY_POSTGRES)
    assert second.returncode == 0
    assert "runs already" in second.stdout
    assert str(psycopg.conninfo.conninfo_to_dict(run_file(folder)["postgres_dsn"])["port"]) in second.stdout
    assert pid_of(folder, "postgres") == pid
    assert not is_gone(pid)


def test_data_is_kept_from_down_to_up_and_the_address_too(folder: Path) -> None:
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    dsn = run_file(folder)["postgres_dsn"]
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    assert outrider(folder, "down").returncode == 0
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    assert run_file(folder)["postgres_dsn"] == dsn
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_stale_run_file_is_cleaned_up(folder: Path) -> None:
    assert outrider(folder, "up", "--ephemeral", *ONLY_POSTGRES).returncode == 0
    first = run_file(folder)
    os.kill(first["parts"]["postgres"]["pid"], signal.SIGKILL)
    eventually(lambda: is_gone(first["parts"]["postgres"]["pid"]), "the killed server is gone")

    again = outrider(folder, "up", "--ephemeral", *ONLY_POSTGRES)
    assert again.returncode == 0, again.stderr
    assert "cleaning up" in again.stderr
    assert answers(run_file(folder)["postgres_dsn"])
    assert not any(Path(path).exists() for path in first["temporary_folders"])


def test_killed_part_is_reported_with_the_end_of_its_log(folder: Path) -> None:
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    os.kill(pid_of(folder, "postgres"), signal.SIGKILL)
    eventually(lambda: is_gone(pid_of(folder, "postgres")), "the killed server is gone")

    status = outrider(folder, "status")
    assert status.returncode == 1
    assert "DEAD" in status.stdout
    assert "database system is ready to accept connections" in status.stderr
    as_json = outrider(folder, "status", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["dead"] == ["postgres"]


def test_down_ends_only_what_up_started(folder: Path) -> None:
    assert outrider(folder, "up", *ONLY_POSTGRES).returncode == 0
    record = run_file(folder)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        # As if the server had died and its pid had come to another program.
        server = dict(record["parts"]["postgres"])
        record["parts"]["kafka"] = {**server, "pid": stranger.pid}
        (folder / ".outrider" / "run.json").write_text(json.dumps(record))
        down = outrider(folder, "down")
        assert down.returncode == 0
        assert down.stdout == "ended postgres\n"
        assert is_gone(server["pid"])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert outrider(folder, "down").stdout == "nothing runs in this folder\n"


def test_of_two_ups_at_once_one_wins(folder: Path) -> None:
    both = [start(folder, "up", *ONLY_POSTGRES) for _ in range(2)]
    codes = sorted(process.wait(DEADLINE_SECONDS) for process in both)
    output = (folder / "output").read_text()
    assert output.count("starting postgres") == 1
    # The loser finds the other at work, or done if it came late.
    assert (codes == [0, 1] and "at work" in output) or (codes == [0, 0] and "runs already" in output)
    assert answers(run_file(folder)["postgres_dsn"])


def test_up_does_not_wait_for_another_up(folder: Path) -> None:
    lock = try_lock(folder / ".outrider" / "up.lock")
    assert lock is not None
    done = outrider(folder, "up", *ONLY_POSTGRES)
    os.close(lock)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "at work" in done.stderr


@pytest.fixture
def foreground(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A running `up --foreground` with PostgreSQL on temporary data."""
    process = start(folder, "up", "--foreground", "--ephemeral", *ONLY_POSTGRES)
    try:
        eventually((folder / ".outrider" / "run.json").exists, "the stack runs")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_ends_all_when_it_is_interrupted(
    folder: Path, foreground: subprocess.Popen[str], number: signal.Signals
) -> None:
    record = run_file(folder)
    foreground.send_signal(number)
    assert foreground.wait(DEADLINE_SECONDS) == 0
    assert is_gone(record["parts"]["postgres"]["pid"])
    assert not any(Path(path).exists() for path in record["temporary_folders"])
    assert read_run_file(folder / ".outrider") is None


def test_foreground_reports_a_part_that_dies(folder: Path, foreground: subprocess.Popen[str]) -> None:
    os.kill(pid_of(folder, "postgres"), signal.SIGKILL)
    assert foreground.wait(DEADLINE_SECONDS) == 1
    output = (folder / "output").read_text()
    assert "postgres was ended by SIGKILL" in output
    assert "database system is ready to accept connections" in output


def test_down_ends_a_foreground_up(folder: Path, foreground: subprocess.Popen[str]) -> None:
    pid = pid_of(folder, "postgres")
    assert outrider(folder, "down").stdout == "ended postgres\n"
    assert foreground.wait(DEADLINE_SECONDS) == 0
    assert is_gone(pid)


def test_parts_end_with_a_foreground_up_that_is_killed(folder: Path, foreground: subprocess.Popen[str]) -> None:
    record = run_file(folder)
    foreground.kill()
    eventually(lambda: is_gone(record["parts"]["postgres"]["pid"]), "the server ends with its owner")
    eventually(lambda: not any(Path(path).exists() for path in record["temporary_folders"]), "temporary data goes")


def test_wrong_parts_are_refused_in_one_line(folder: Path) -> None:
    unknown = outrider(folder, "up", "--only", "zookeeper")
    assert unknown.returncode == 2
    assert "zookeeper" in unknown.stderr
    alone = outrider(folder, "up", "--only", "worker")
    assert alone.returncode == 1
    assert alone.stderr == "outrider: worker cannot run without kafka and postgres\n"
