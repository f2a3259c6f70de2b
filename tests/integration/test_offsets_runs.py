"""``outrider runs``: every act with who, why and what came of it, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest

from pipeline.ledger.operator import Act
from pipeline.ledger.runs import BusyError, alone, close_run, find_run, open_run
from tests.support.ledger_rows import connect, wait_until
from tests.support.program import Outrider, program


@pytest.fixture
def ledger(database: str) -> Iterator[psycopg.Connection]:
    with connect(database) as connection:
        yield connection


@pytest.fixture
def outrider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], role_dsns: dict[str, str]
) -> Outrider:
    return program(monkeypatch, capsys, postgres_dsn=role_dsns["operator"])


def begun(ledger: psycopg.Connection, kind: str = "offsets.apply", reason: str | None = "why") -> UUID:
    return open_run(ledger, kind, Act("kim", reason), parameters={"group": "g"}, before=[{"offset": 1}], after=[])


def passed(ledger: psycopg.Connection, count: int) -> None:
    """So many passes of a reconciler."""
    ledger.execute(
        "insert into outrider.run (kind, woken_by, finished_at) "
        "select 'reconcile', 'timer', clock_timestamp() from generate_series(1, %s)",
        (count,),
    )


def test_a_run_is_open_then_done_or_failed(ledger: psycopg.Connection) -> None:
    run_id = begun(ledger)
    run = find_run(ledger, run_id)
    assert run is not None
    assert (run.outcome, run.parameters, run.before, run.after) == ("open", {"group": "g"}, [{"offset": 1}], [])
    close_run(ledger, run_id, after=[{"offset": 2}], counts={"changed": 1}, error=None)
    done = find_run(ledger, run_id)
    assert done is not None
    assert (done.outcome, done.after, done.counts) == ("done", [{"offset": 2}], {"changed": 1})
    close_run(ledger, run_id, after=[], counts={}, error="too late")
    assert find_run(ledger, run_id) == done
    failed = begun(ledger)
    close_run(ledger, failed, after=None, counts={}, error="broke")
    run = find_run(ledger, failed)
    assert run is not None
    assert (run.outcome, run.error, run.after) == ("failed", "broke", [])


def test_the_list_is_of_people_newest_first_and_of_all_on_request(
    outrider: Outrider, ledger: psycopg.Connection
) -> None:
    first, second = begun(ledger), begun(ledger, "offsets.undo")
    passed(ledger, 3)
    assert [run["run_id"] for run in outrider("runs", "list", "--json").json["runs"]] == [str(second), str(first)]
    assert len(outrider("runs", "list", "--all", "--json").json["runs"]) == 5
    by_kind = outrider("runs", "list", "--kind", "offsets.apply", "--json").json["runs"]
    assert [run["run_id"] for run in by_kind] == [str(first)]
    assert len(outrider("runs", "list", "--kind", "reconcile", "--json").json["runs"]) == 3


def test_pages_hang_together(outrider: Outrider, ledger: psycopg.Connection) -> None:
    with ledger.transaction():
        # The same start for all: the id decides.
        passed(ledger, 7)
        ledger.execute("update outrider.run set started_at = now()")
    seen: list[str] = []
    after: list[str] = []
    while True:
        page = outrider("runs", "list", "--all", "--limit", "3", "--json", *after).json
        seen += [run["run_id"] for run in page["runs"]]
        if page["after"] is None:
            break
        after = ["--after", page["after"]]
    assert len(seen) == len(set(seen)) == 7


def test_the_acts_of_other_commands_are_there_too(outrider: Outrider, ledger: psycopg.Connection) -> None:
    outrider("destination", "add", "acme", "--url", "https://receiver.example/hook", "--reason", "new receiver")
    (run,) = outrider("runs", "list", "--json").json["runs"]
    assert (run["kind"], run["reason"], run["outcome"]) == ("destination.add", "new receiver", "done")


def test_a_run_is_shown_with_its_positions(outrider: Outrider, ledger: psycopg.Connection) -> None:
    run_id = begun(ledger, reason="a\x1b[31m reason")
    shown = outrider("runs", "show", str(run_id))
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "parameter group  g" in shown.stdout
    assert "before\nOFFSET\n1" in shown.stdout
    assert outrider("runs", "show", str(run_id), "--json").json["outcome"] == "open"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["show", "seven"], "no run's id"),
        (["show", str(UUID(int=7))], "no run "),
        (["list", "--after", "yesterday"], "take the cursor"),
        (["list", "--after", "2026-01-01T00:00:00,x"], "take the cursor"),
    ],
)
def test_what_is_not_there_is_one_line(outrider: Outrider, arguments: list[str], problem: str) -> None:
    done = outrider("runs", *arguments)
    assert done.exit_code == 1
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_only_one_session_is_alone(database: str, ledger: psycopg.Connection) -> None:
    with connect(database) as other:
        with alone(ledger, "offsets of group", "g"):
            with pytest.raises(BusyError, match="offsets of group g"), alone(other, "offsets of group", "g"):
                pass
            with alone(other, "offsets of group", "h"):
                pass
        with alone(other, "offsets of group", "g"):
            pass


@pytest.mark.parametrize(
    ("arguments", "index"),
    [([], "run_by_act"), (["--all"], "run_by_start"), (["--kind", "offsets.apply"], "run_by_time")],
)
def test_lists_read_an_index_in_order(
    outrider: Outrider, ledger: psycopg.Connection, arguments: list[str], index: str
) -> None:
    ledger.execute(
        "insert into outrider.run (kind, woken_by, started_at) "
        "select case when n % 50 = 0 then 'offsets.apply' else 'reconcile' end, "
        "       case when n % 50 = 0 then 'operator' else 'timer' end, now() - n * interval '1 second' "
        "from generate_series(1, 20000) n"
    )
    ledger.execute("analyze outrider.run")

    def scans() -> int:
        row = ledger.execute(
            "select pg_stat_get_numscans(c.oid) + pg_stat_get_xact_numscans(c.oid) from pg_class c where relname = %s",
            (index,),
        ).fetchone()
        assert row is not None
        return int(row[0])

    before = scans()
    assert len(outrider("runs", "list", *arguments, "--json").json["runs"]) == 50
    # The command's session counts its scans as it ends.
    wait_until(lambda: scans() > before, f"{index} is read")
