"""The program ``outrider``: one command tree, one way to fail.

Exit codes: 0 done, 1 found a difference or failed, 2 wrong usage. An error that the person at the keyboard can mend is
one line on stderr; a traceback is a defect.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

import psycopg
import typer

from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.run_commands import is_component
from pipeline.ledger.migrate import MigrationError
from pipeline.settings import SettingsError

COMMAND_MODULES = (
    "demo_command",
    "example_commands",
    "stack_commands",
    "migrate_commands",
    "topics_commands",
    "connector_commands",
    "quarantine_commands",
    "run_commands",
    "destination_commands",
    "key_commands",
    "secrets_commands",
    "delivery_commands",
    "reconcile_commands",
    "source_commands",
    "offsets_commands",
    "replay_commands",
    "audit_commands",
    "runs_commands",
    "settings_commands",
)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def build_app(words: Sequence[str] = ()) -> typer.Typer:
    """The whole tree; for a command line that starts a component only that, since it is to load only what it uses."""
    app = typer.Typer(
        name="outrider",
        help="Committed business events to webhook receivers, on the record.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_tree)  # without one, a tree of a single command would lose the command's name
    for name in ("run_commands",) if is_component(words) else COMMAND_MODULES:
        if importlib.util.find_spec(f"pipeline.cli.{name}") is None:
            continue
        register: Callable[[typer.Typer], None] = importlib.import_module(f"pipeline.cli.{name}").register
        register(app)
    return app


def _tree() -> None:
    """Committed business events to webhook receivers, on the record."""


def main() -> None:
    """Entry point of the console script."""
    try:
        try:
            build_app(sys.argv[1:])()
        finally:
            if sys.stdout is not None:  # as where a shell closed it
                sys.stdout.flush()  # what it could not take is told here, not by the interpreter at its end
    except UsageError as error:
        _fail(str(error), exit_code=2)
    except (CommandError, SettingsError, MigrationError) as error:
        _fail(str(error))
    except psycopg.OperationalError as error:
        _fail(
            f"PostgreSQL: {' '.join(str(error).split())}; check that the server runs, and OUTRIDER_POSTGRES_DSN "
            '(for the stack of outrider up: eval "$(outrider status --export)")'
        )
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
        _fail(f"the database lacks Outrider's schema ({error.diag.message_primary}): run outrider migrate up")
    except psycopg.errors.InsufficientPrivilege as error:
        _fail(f"{error.diag.message_primary}: connect as a role that may (see the README's table of roles)")
    except psycopg.DataError as error:
        _fail(f"a value in the database cannot be shown or stored: {' '.join(str(error).split())}")
    except BrokenPipeError:
        # The reader of our output (head, less) left; nothing more can be said to it.
        _say_no_more()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _say_no_more()
        _fail(f"output cannot be written: {error.strerror}; make room, or write to another place")


def _say_no_more() -> None:
    """Else the interpreter tries once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int = 1) -> None:
    print(f"outrider: {message}", file=sys.stderr)
    sys.exit(exit_code)
