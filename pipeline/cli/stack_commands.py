"""`outrider up`, `down`, `status`, `psql`: the development stack of the current folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pipeline.cli.errors import CommandError, UsageError
from pipeline.settings import environment_of
from pipeline.stack.errors import StackError

if TYPE_CHECKING:
    from pipeline.stack.run_file import RunRecord


def register(app: typer.Typer) -> None:
    """Add the four commands."""
    app.command()(up)
    app.command()(down)
    app.command()(status)
    # What follows is psql's own to read.
    app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(psql)


def up(
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep no data.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground/--detach", help="Stay, report parts that die, end all with Ctrl-C.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many delivery workers.")] = 1,
    only: Annotated[
        str | None, typer.Option(metavar="PART,PART", help="Only these parts, such as kafka,postgres.")
    ] = None,
) -> None:
    """Start Kafka, PostgreSQL and all components, in this folder's .outrider.

    Where the stack runs already, this says so and exits with 0: what was asked for is there. It exits
    with 1 if one of its parts has died.
    """
    # Imported here: the other commands of the program need neither the servers' code nor its libraries.
    from pipeline.stack import supervisor

    options = supervisor.UpOptions(is_temporary=ephemeral, workers=workers, only=_parts(only))
    with _one_line_errors():
        try:
            if foreground:
                all_lived = supervisor.up_in_foreground(Path.cwd(), options, _say, _show_ready)
                raise typer.Exit(0 if all_lived else 1)
            _show(supervisor.up(Path.cwd(), options, _say))
        except supervisor.RunsAlreadyError as already:
            print(f"{already}: outrider down ends it")
            _show(already.record)
            _, deaths = supervisor.status(Path.cwd())
            _report(deaths)


def down() -> None:
    """End what `outrider up` started in this folder, and nothing else. Safe to repeat."""
    from pipeline.stack import supervisor

    with _one_line_errors():
        ended = supervisor.down(Path.cwd())
    print(f"ended {', '.join(ended)}" if ended else "nothing runs in this folder")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="One object, with passwords.")] = False,
    as_exports: Annotated[
        bool, typer.Option("--export", help="Shell lines with a login's settings, password included, for eval.")
    ] = False,
    login: Annotated[
        str, typer.Option("--login", help="With --export: whose, such as reconciler for passes by hand.")
    ] = "operator",
) -> None:
    """What runs and where it answers; exit code 1 if nothing runs or a part has died.

    The other commands take their settings from the environment: eval "$(outrider status --export)" points them at
    this folder's stack.
    """
    from pipeline.stack import supervisor

    with _one_line_errors():
        record, deaths = supervisor.status(Path.cwd())
    if as_json:
        content = {} if record is None else msgspec.to_builtins(record)
        dead = [] if record is None else sorted(record.dead_parts)
        print(json.dumps({"running": record is not None and record.is_alive, "dead": dead, **content}))
        raise typer.Exit(1 if record is None or dead else 0)
    if record is None:
        # Not among lines that a shell is to read.
        print("nothing runs in this folder: outrider up starts it", file=sys.stderr if as_exports else sys.stdout)
        raise typer.Exit(1)
    if as_exports:
        _show_exports(record, login)
    else:
        _show(record)
    _report(deaths)


def psql(
    context: typer.Context,
    login: Annotated[
        str | None, typer.Option("--login", help="Whose, such as application or operator. Default: the owner's.")
    ] = None,
) -> None:
    """Open psql on this folder's stack, as the owner of its database or as one of its logins.

    What else is given goes to psql, as in: outrider psql --login application -c 'select 1'.
    """
    from pipeline.stack import supervisor

    with _one_line_errors():
        record, _ = supervisor.status(Path.cwd())
    if record is None or record.postgres_dsn is None:
        raise CommandError("no PostgreSQL of outrider up runs in this folder: outrider up starts it")
    found = _psql()
    if found is None:
        raise CommandError("there is no psql: put PostgreSQL's programs on PATH, or pip install 'outrider[embedded]'")
    at = conninfo_to_dict(_dsn_of(record, login) if login is not None else record.postgres_dsn)
    password = {"PGPASSWORD": str(at.pop("password"))}  # others on this machine see arguments
    words = [found, "--dbname", make_conninfo("", **at), *context.args]
    os.execve(found, words, {**os.environ, **password})  # noqa: S606 - no shell is wanted


def _psql() -> str | None:
    """The one on PATH, else the embedded server's."""
    from pipeline.stack.postgres_programs import wheel_programs

    wheel = wheel_programs()
    return shutil.which("psql") or (shutil.which("psql", path=str(wheel.folder)) if wheel is not None else None)


def _show_ready(record: RunRecord) -> None:
    _show(record)
    print("ready; Ctrl-C ends it", flush=True)


def _show(record: RunRecord) -> None:
    if record.postgres_dsn is not None:
        at = conninfo_to_dict(record.postgres_dsn)
        # A terminal is no place for a password; the run file has it.
        print(f"postgres  postgresql://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}")
    if record.bootstrap_servers is not None:
        print(f"kafka     {record.bootstrap_servers}")
    if record.api_url is not None:
        print(f"api       {record.api_url}")
    print("secrets   .outrider/run.json")
    for name, folder in record.data.items():
        print(f"data      {name} in {folder}{' (temporary)' if record.temporary_folders else ''}")
    for name, part in record.parts.items():
        print(f"part      {name:<12} {'runs' if part.is_alive else 'DEAD'}  pid {part.pid:<8} log {part.log}")
    sys.stdout.flush()


def _show_exports(record: RunRecord, login: str) -> None:
    from pipeline.stack.development_stack import ONE_BROKER

    values = {
        # A stack of servers alone has no logins yet.
        "postgres_dsn": _dsn_of(record, login) if record.dsns else record.postgres_dsn,
        "kafka_bootstrap_servers": record.bootstrap_servers,
        **ONE_BROKER,
    }
    for name, value in environment_of(values).items():
        print(f"export {name}={shlex.quote(value)}")


def _dsn_of(record: RunRecord, login: str) -> str:
    if login not in record.dsns:
        raise UsageError(f"--login {login}: this stack has {', '.join(record.dsns) or 'none, only its owner'}")
    return record.dsns[login]


def _report(deaths: list[str]) -> None:
    for note in deaths:
        print(note, file=sys.stderr)
    if deaths:
        print("outrider down, then outrider up, starts all parts again", file=sys.stderr)
        raise typer.Exit(1)


def _parts(only: str | None) -> tuple[str, ...]:
    from pipeline.stack.development_stack import PARTS

    if only is None:
        return PARTS
    chosen = tuple(name.strip() for name in only.split(","))
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        raise typer.BadParameter(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    return chosen


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except StackError as error:
        raise CommandError(str(error)) from error
