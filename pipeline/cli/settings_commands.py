"""``outrider settings …``: what can be set, and whether what is set makes sense."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

import typer
from pydantic import SecretStr

from pipeline.cli.acting import AsJson
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_fields, print_json
from pipeline.cli.settings_sample import settings_sample
from pipeline.settings import FILE_SUFFIX, PREFIX, Settings, load_settings, secret_fields, variable

OTHER_VARIABLES = frozenset(
    {"OUTRIDER_CACHE_DIR", "OUTRIDER_TEST_POSTGRES_DSN", "OUTRIDER_TEST_KAFKA_BOOTSTRAP_SERVERS"}
)
"""Of the development stack and of the tests, which have no setting of the program."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What can be set, and what is.")
    group.command("sample")(sample)
    group.command("check")(check)
    app.add_typer(group, name="settings")


def sample() -> None:
    """Print every setting with its meaning and default, as a file for an environment."""
    print(settings_sample(), end="")


def check(as_json: AsJson = False) -> None:
    """Read the environment as a component would, and show the result without its secrets."""
    settings = load_settings()
    if problems := unknown_variables(os.environ):
        raise CommandError("; ".join(problems))
    values = {name: _shown(getattr(settings, name)) for name in Settings.model_fields}
    if as_json:
        print_json(values)
    else:
        print_fields((variable(name), value) for name, value in values.items())


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that nothing reads: most often a slip of the pen."""
    known = {variable(field) for field in Settings.model_fields} | OTHER_VARIABLES
    known |= {variable(field) + FILE_SUFFIX for field in secret_fields(Settings)}
    problems = []
    for name in sorted(name for name in environment if name.startswith(PREFIX) and name not in known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        problems.append(f"{name} is no setting" + (f"; {near[0]} is" if near else ""))
    return problems


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        return "(set, not shown)"
    return value if value is None or isinstance(value, int | float | str) else str(value)
