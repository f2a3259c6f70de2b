"""``outrider run …``: one component in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
    app.command()(run)


def run(component: Component) -> None:
    """Run one component in the foreground. Settings come from the environment: see `outrider settings sample`."""
    settings = load_settings()
    configure_logs(settings.log_format, settings.log_level, component.value)
    # Imported here, so that a component loads only what it uses.
    module = importlib.import_module(f"pipeline.cli.run_{component.value}")
    start: Callable[[Settings], int] = getattr(module, f"run_{component.value}")
    raise typer.Exit(start(settings))
