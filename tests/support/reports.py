"""What tests of the reconciliation report share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.fixtures.databases import database_name
from tests.support.ledger_rows import connect


@contextmanager
def careless_slot(dsn: str) -> Iterator[None]:
    """Somebody who confirms the slot and publishes nothing."""
    over = threading.Event()

    def confirm() -> None:
        with connect(dsn) as session:
            while not over.is_set():
                session.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (database_name(dsn),))
                over.wait(0.1)

    thread = threading.Thread(target=confirm)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ids_of(report: Any, kind: str) -> list[str]:
    """Deliveries that a report in JSON has findings of the kind about."""
    return sorted({f["delivery_id"] for f in report["findings"] if f["kind"] == kind})
