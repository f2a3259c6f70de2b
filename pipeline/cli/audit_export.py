"""``outrider audit export``: recorded messages as NDJSON or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit.export import ParquetMissingError, export_ndjson, export_parquet
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.moments import parse_moment_or_ago
from pipeline.ledger.audit import RecordedMessage, matching_records, one_moment
from pipeline.ledger.operator import operator_connection
from pipeline.settings import load_settings

PARTIAL = ".partial"


class Format(StrEnum):
    NDJSON = "ndjson"
    PARQUET = "parquet"


def export(
    *,
    form: Annotated[
        Format, typer.Option("--format", help="NDJSON, or Parquet with the extra `parquet`.")
    ] = Format.NDJSON,
    out: Annotated[Path, typer.Option(help="File to write; - is standard output, for NDJSON.", dir_okay=False)] = Path(
        "-"
    ),
    since: Annotated[
        str | None, typer.Option(help="Messages from this moment on, as 2026-11-30T18:00:00Z, or so long ago, as 6h.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="And before this moment, or so long ago.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    destination: Annotated[str | None, typer.Option(help="Only of this destination.")] = None,
    delivery: Annotated[str | None, typer.Option(help="Only of this delivery.")] = None,
    result: Annotated[
        str | None, typer.Option(help="Only attempts that ended so: succeeded, retry, dead, late.")
    ] = None,
) -> None:
    """Write what was recorded, as of one moment. A file is there under its name only once it is whole."""
    now = datetime.now(UTC)
    begin = None if since is None else parse_moment_or_ago("--since", since, now)
    end = None if until is None else parse_moment_or_ago("--until", until, now)
    if form is Format.PARQUET and str(out) == "-":
        raise UsageError("--format parquet needs --out FILE: it is written with its index at the end")
    settings = load_settings()
    with operator_connection(settings.postgres_conninfo) as connection, one_moment(connection):
        records = matching_records(
            connection,
            since=begin,
            until=end,
            topic=topic,
            destination_id=destination,
            delivery_id=delivery,
            result=result,
        )
        rows = _write(records, form, out)
    print(f"{rows} rows", file=sys.stderr)


def _write(records: Iterable[RecordedMessage], form: Format, out: Path) -> int:
    if str(out) == "-":
        return export_ndjson(records, sys.stdout, _progress)
    partial = out.with_name(out.name + PARTIAL)
    try:
        if form is Format.PARQUET:
            rows = export_parquet(records, partial, _progress)
        else:
            with partial.open("w", encoding="utf-8") as file:
                rows = export_ndjson(records, file, _progress)
        partial.replace(out)
    except OSError as error:
        raise CommandError(f"{out} cannot be written: {error.strerror or error}") from None
    except ParquetMissingError:
        raise CommandError("Parquet needs pyarrow: pip install 'outrider[parquet]'") from None
    except KeyboardInterrupt:
        raise CommandError(f"interrupted: {partial} is not whole; the same command begins anew") from None
    return rows


def _progress(rows: int) -> None:
    if sys.stderr.isatty():
        print(f"\rexported {rows} rows", end="", file=sys.stderr, flush=True)
