"""Bodies of ``POST /v1/events:batch`` as items, each an event to admit or the refusal of what it is instead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pipeline.admission import asking
from pipeline.admission.cloudevents import BATCHED, JSON, Routing, from_structured
from pipeline.admission.operations import NDJSON
from pipeline.admission.problems import Kind, Refusal
from pipeline.admission.wire import BatchItem
from pipeline.ledger.admission import EventToAdmit

Item = EventToAdmit | Refusal

_array = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(BatchItem)


def items_of(body: bytes, content_type: str, routing: Routing, *, items_max: int) -> list[Item]:
    """Raises Refusal where the body as a whole cannot be understood, or holds no item, or too many."""
    if content_type == NDJSON:
        lines = [line for line in body.split(b"\n", items_max + 1) if line.strip()]
        _check_count(len(lines), items_max)
        return [_routed(line, routing) for line in lines]
    if content_type not in (JSON, BATCHED):
        raise Refusal(
            Kind.MEDIA_TYPE,
            f"{content_type or 'no content type'} is not understood here",
            field="Content-Type",
            mend=f"send {JSON}, {NDJSON} or {BATCHED}",
        )
    asking.check_depth(body)
    try:
        documents = _array.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise asking.as_refusal(error) from None
    _check_count(len(documents), items_max)
    if content_type == BATCHED:
        return [_event(bytes(document), routing) for document in documents]
    return [_routed(bytes(document), routing) for document in documents]


def _routed(document: bytes, default: Routing) -> Item:
    """An item with a routing of its own, where it has one."""
    try:
        asking.check_depth(document)
        item = _item.decode(document)
        given = Routing(
            destinations=default.destinations if not item.destinations else _names(item.destinations),
            deliver_at=item.deliver_at or default.deliver_at,
            event_id=asking.storable(item.event_id, "event_id") if item.event_id else None,
        )
    except Refusal as refusal:
        return refusal
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return asking.as_refusal(error)
    return _event(bytes(item.event), given)


def _names(destinations: list[str]) -> tuple[str, ...]:
    return tuple(asking.storable(name, "destinations") for name in destinations)


def _event(document: bytes, routing: Routing) -> Item:
    try:
        return from_structured(document, routing)
    except Refusal as refusal:
        return refusal
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return asking.as_refusal(error)


def _check_count(count: int, items_max: int) -> None:
    if count == 0:
        raise Refusal(Kind.MALFORMED, "the batch is empty", field="body", mend="send at least one item")
    if count > items_max:
        raise Refusal(
            Kind.TOO_LARGE, f"the batch has more than {items_max} items", field="body", mend="split the batch"
        )


def refused_places(items: list[Item]) -> Iterator[tuple[int, Refusal]]:
    """Items that are no event, with their places from 0."""
    return ((place, item) for place, item in enumerate(items) if isinstance(item, Refusal))
