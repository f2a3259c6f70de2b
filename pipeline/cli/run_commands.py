"""``outrider run …``: one component in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from enum import StrEnum

import typer

from pipeline.logs import configure_logs
from pipeline.settings import Settings, load_settings


class Component(StrEnum):
    connector = "connector"
    worker = "worker"
    reconciler = "reconciler"
    audit = "audit"
    api = "api"


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        help="Run one component in the foreground. Settings come from the environment: see `outrider settings sample`.",
    )
    for component in Component:
        group.command(component.value, help=f"Run the {component.value} until SIGTERM or SIGINT.")(_starter(component))
    app.add_typer(group, name="run")


def is_component(words: Sequence[str]) -> bool:
    """Whether a command line starts a component, as opposed to `run list` and all other commands."""
    return list(words[:1]) == ["run"] and words[1:2] != [] and words[1] in set(Component)


def _starter(component: Component) -> Callable[[], None]:
    def start() -> None:
        _run(component)

    return start


def _run(component: Component) -> None:
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level, component.value)
    # Imported here, so that a component loads only what it uses.
    module = importlib.import_module(f"pipeline.cli.run_{component.value}")
    start: Callable[[Settings], int] = getattr(module, f"run_{component.value}")
    raise typer.Exit(start(settings))
