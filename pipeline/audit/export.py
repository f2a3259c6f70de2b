"""The audit's rows for other programs: NDJSON, or Parquet where pyarrow is there. Streams: memory holds one batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from pipeline.ledger.audit import COLUMNS, RecordedMessage

BATCH_ROWS = 10_000
"""Of a row group in Parquet, and between two reports of progress."""

Progress = Callable[[int], None]


class ParquetMissingError(RuntimeError):
    """pyarrow is not installed."""


def export_ndjson(records: Iterable[RecordedMessage], out: TextIO, progress: Progress) -> int:
    """One JSON object a line: moments as ISO 8601 in UTC, hashes as hex. Returns the number of rows."""
    rows = 0
    for batch in _batches(records):
        out.writelines(json.dumps(_plain(record), ensure_ascii=False) + "\n" for record in batch)
        rows += len(batch)
        progress(rows)
    return rows


def export_parquet(records: Iterable[RecordedMessage], path: Path, progress: Progress) -> int:
    """Moments as timestamps in microseconds, hashes as binary. Raises ParquetMissingError, and OSError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ParquetMissingError from None
    schema = _schema(pa)
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(records):
            columns = {name: [getattr(record, name) for record in batch] for name in COLUMNS}
            writer.write_table(pa.table(columns, schema=schema))
            rows += len(batch)
            progress(rows)
    return rows


def _schema(pa: Any) -> Any:
    moment, text = pa.timestamp("us", tz="UTC"), pa.string()
    special = {
        "partition": pa.int32(),
        "log_offset": pa.int64(),
        "logged_at": moment,
        "chain_seq": pa.int64(),
        "recorded_at": moment,
        "dispatch_seq": pa.int32(),
        "attempt": pa.int32(),
        "status": pa.int32(),
        "ambiguous": pa.bool_(),
        "key_ids": pa.list_(text),
        "started_at": moment,
        "duration_us": pa.int64(),
        "body_sha256": pa.binary(),
        "hash": pa.binary(),
    }
    return pa.schema([(name, special.get(name, text)) for name in COLUMNS])


def _plain(record: RecordedMessage) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in COLUMNS:
        value = getattr(record, name)
        if isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, bytes):
            value = value.hex()
        values[name] = value
    return values


def _batches(records: Iterable[RecordedMessage]) -> Iterator[list[RecordedMessage]]:
    iterator = iter(records)
    while batch := list(islice(iterator, BATCH_ROWS)):
        yield batch
