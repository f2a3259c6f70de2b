"""``python -m examples.analytics run|plot``: see README.md beside it."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from examples.analytics.group import AnalyticsGroup
from examples.analytics.page import render
from examples.analytics.store import Store, StoreError
from topics.security import KafkaConnection

PLOT_EVERY_SECONDS = 10.0
PROPERTIES_CHARACTERS_MAX = 64 * 1024


def main(arguments: Sequence[str]) -> int:
    """0 when stopped or done, 1 where Kafka or the file fails, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        store = Store(options.store)
        try:
            if options.command == "plot":
                _plot(store, options.out, options.minutes)
            else:
                _run(store, options)
        finally:
            store.close()
    except (StoreError, OSError) as error:
        print(f"analytics: {error}", file=sys.stderr)
        return 1
    except KafkaException as error:
        print(f"analytics: Kafka: {error.args[0].str()}; the same command goes on where it was", file=sys.stderr)
        return 1
    return 0


def _run(store: Store, options: argparse.Namespace) -> None:
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    kafka: dict[str, Any] = KafkaConnection(bootstrap_servers=options.bootstrap_servers).librdkafka()
    kafka |= _properties(options.kafka_properties)
    keep = timedelta(days=options.keep_days)
    group = AnalyticsGroup(kafka, topic=options.topic, group=options.group, store=store, keep=keep)
    plotted_at = 0.0
    try:
        while not stopping and not (options.until_end and group.is_at_end):
            group.step()
            if options.plot is not None and time.monotonic() - plotted_at > PLOT_EVERY_SECONDS:
                _plot(store, options.plot, options.minutes)
                plotted_at = time.monotonic()
        if options.plot is not None:
            _plot(store, options.plot, options.minutes)
    finally:
        group.close()
    print(f"{group.messages} messages read; the same command goes on behind them", file=sys.stderr)


def _plot(store: Store, path: Path, minutes: int) -> None:
    """Whole or not at all: a browser may load it at any moment."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(render(store.minutes(minutes), defects=store.defects()), encoding="utf-8")
    draft.replace(path)


def _properties(path: Path | None) -> dict[str, str]:
    """Lines ``name=value``, as Kafka's own tools take them, by librdkafka's names. Raises OSError."""
    if path is None:
        return {}
    with path.open(encoding="utf-8") as file:
        lines = [line.strip() for line in file.read(PROPERTIES_CHARACTERS_MAX).splitlines()]
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.analytics", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="read attempts into the file until SIGTERM or Ctrl-C")
    run.add_argument("--bootstrap-servers", required=True, help="host:port of Kafka's brokers")
    run.add_argument("--kafka-properties", type=Path, help="file with more of librdkafka's settings: TLS, SASL")
    run.add_argument("--topic", default="outrider.attempts")
    run.add_argument("--group", default="outrider.analytics")
    run.add_argument("--until-end", action="store_true", help="end when all that is there has been read")
    run.add_argument("--keep-days", type=int, default=30, help="older attempts are removed from the file")
    run.add_argument(
        "--plot", type=Path, help="write the page every ten seconds too: while it runs, nobody else can open the file"
    )
    plot = commands.add_parser("plot", help="write the page from the file")
    plot.add_argument("--out", type=Path, required=True, help="HTML file")
    for command in (run, plot):
        command.add_argument(
            "--store", type=Path, required=True, help="the DuckDB file; it is made where there is none"
        )
        command.add_argument("--minutes", type=int, default=180, help="minutes on the page")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
