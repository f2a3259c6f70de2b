"""Admission for Python applications, inside their own transaction.

Both functions call the one SQL function ``outrider.admit`` on the caller's connection and commit nothing: the event is
admitted if, and only if, the caller's transaction commits. ::

    with psycopg.connect(...) as connection:
        connection.execute("update asset set state = 'processed' where asset_id = 42")
        admit_sync(connection, event_id="asset-42-processed-1", event_type="media.processed", payload=b'{"asset":42}')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from pipeline.admission.errors import BY_SQLSTATE, InvalidArgument

_ADMIT = """
select * from outrider.admit(
  event_id => %(event_id)s::text, event_type => %(event_type)s::text, payload => %(payload)s::bytea,
  content_type => %(content_type)s::text, destinations => %(destinations)s::text[],
  deliver_at => %(deliver_at)s::timestamptz, headers => %(headers)s::jsonb)
"""


@dataclass(frozen=True, slots=True)
class AdmittedDelivery:
    delivery_id: str
    """Goes out as ``webhook-id`` and ``Idempotency-Key``, and never changes."""
    destination_id: str
    created: bool
    """False: this event was admitted for this destination before, and nothing changed."""
    state: str


async def admit(
    connection: psycopg.AsyncConnection[Any],
    *,
    event_id: str,
    event_type: str,
    payload: bytes,
    content_type: str = "application/json",
    destinations: Sequence[str] | None = None,
    deliver_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[AdmittedDelivery]:
    """Admit one event for the named destinations, or for those subscribed to its type.

    Repeating the call changes nothing. ``deliver_at`` must carry its offset. ``headers`` go out with each request, and
    are not part of the identity. Returns the deliveries ordered by destination; none where nobody is subscribed.
    Raises a subclass of AdmissionError, and psycopg.Error for all that is not about the arguments.
    """
    with _named_errors():
        parameters = _parameters(event_id, event_type, payload, content_type, destinations, deliver_at, headers)
        cursor = connection.cursor(row_factory=class_row(AdmittedDelivery))
        await cursor.execute(_ADMIT, parameters)
        return await cursor.fetchall()


def admit_sync(
    connection: psycopg.Connection[Any],
    *,
    event_id: str,
    event_type: str,
    payload: bytes,
    content_type: str = "application/json",
    destinations: Sequence[str] | None = None,
    deliver_at: datetime | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[AdmittedDelivery]:
    """``admit`` for a synchronous connection."""
    with _named_errors():
        parameters = _parameters(event_id, event_type, payload, content_type, destinations, deliver_at, headers)
        cursor = connection.cursor(row_factory=class_row(AdmittedDelivery))
        return cursor.execute(_ADMIT, parameters).fetchall()


def _parameters(  # noqa: PLR0917 - the arguments of one SQL function, in its order
    event_id: str,
    event_type: str,
    payload: bytes,
    content_type: str,
    destinations: Sequence[str] | None,
    deliver_at: datetime | None,
    headers: Mapping[str, str] | None,
) -> dict[str, object]:
    if deliver_at is not None and deliver_at.tzinfo is None:
        raise InvalidArgument("deliver_at has no offset", "pass an aware datetime, such as datetime.now(UTC)")
    if isinstance(destinations, str):
        raise InvalidArgument("destinations is one string", "pass a list of names")
    return {
        "event_id": event_id,
        "event_type": event_type,
        "payload": payload,
        "content_type": content_type,
        "destinations": None if destinations is None else list(destinations),
        "deliver_at": deliver_at,
        "headers": Jsonb(dict(headers or {})),
    }


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        known = BY_SQLSTATE.get(error.sqlstate or "")
        if known is not None:
            raise known(error.diag.message_primary or str(error), error.diag.message_hint) from error
        if isinstance(error, psycopg.DataError):
            # Text that PostgreSQL cannot hold at all, such as one with a NUL.
            raise InvalidArgument(error.diag.message_primary or str(error)) from error
        raise
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"text that is not valid Unicode: {error.reason}") from error
