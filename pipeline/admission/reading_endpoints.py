"""What may be read: deliveries, events, destinations and the status of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from pipeline.admission import asking, wire
from pipeline.admission.answers import json_response
from pipeline.admission.key_ring import Caller
from pipeline.admission.problems import Kind, Refusal
from pipeline.admission.router import PATH_VALUES
from pipeline.admission.status import StatusReport
from pipeline.core.lifecycle import State
from pipeline.ledger import admission as ledger
from pipeline.ledger.pool import Pool
from pipeline.ledger.reports import ALL_STATES, BEGINNING, WAITING_STATES, Cursor, DeliveryEntry

ATTEMPTS_SHOWN = 100
DELIVERIES_SHOWN = 100
_OF_EVENT = "deliveries_of_event"


class ReadingEndpoints:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._report = StatusReport(pool)

    async def list_events(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        limit, place = asking.page_rows(request), asking.cursor(request, "events")
        before = ledger.END if place is None else _cursor(place)
        events = await ledger.list_events(self._pool, before=before, limit=limit)
        following = None
        if len(events) == limit:
            last = events[-1]
            following = asking.cursor_text("events", str(Cursor(last.admitted_at, last.event_id)))
        return json_response(wire.EventPage(events=[_event(event) for event in events], next_cursor=following))

    async def get_event(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        event_id = asking.storable(request[PATH_VALUES]["event_id"], "event_id")
        event = await ledger.find_event(self._pool, event_id)
        if event is None:
            raise _not_found("event", "event_id")
        deliveries = await ledger.list_deliveries_of_event(self._pool, event_id, limit=DELIVERIES_SHOWN)
        page = _delivery_page(deliveries, _OF_EVENT, DELIVERIES_SHOWN)
        return json_response(
            wire.EventDetail(
                **msgspec.structs.asdict(_event(event)), deliveries=page.deliveries, next_cursor=page.next_cursor
            )
        )

    async def list_deliveries(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        limit, event_id = asking.page_rows(request), asking.one(request, "event_id")
        destination_id = asking.one(request, "destination")
        states = _states(request)
        if event_id is not None:
            if destination_id is not None or states is not None:
                raise Refusal(
                    Kind.INVALID, "event_id stands alone", field="event_id", mend="leave destination and state out"
                )
            after_id = asking.cursor(request, _OF_EVENT) or ""
            deliveries = await ledger.list_deliveries_of_event(
                self._pool, event_id, after_destination_id=after_id, limit=limit
            )
            return json_response(_delivery_page(deliveries, _OF_EVENT, limit))
        listing, asked = _listing(destination_id, states)
        place = asking.cursor(request, listing)
        deliveries = await ledger.list_deliveries(
            self._pool,
            listing,
            destination_id=destination_id,
            states=asked,
            after=BEGINNING if place is None else _cursor(place),
            limit=limit,
        )
        return json_response(_delivery_page(deliveries, listing, limit))

    async def get_delivery(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        delivery_id = asking.storable(request[PATH_VALUES]["delivery_id"], "delivery_id")
        entry = await ledger.find_delivery(self._pool, delivery_id)
        if entry is None:
            raise _not_found("delivery", "delivery_id")
        attempts = await ledger.list_attempts(self._pool, delivery_id, ATTEMPTS_SHOWN)
        return json_response(
            wire.DeliveryDetail(
                **msgspec.structs.asdict(_delivery(entry)),
                attempts=[msgspec.convert(attempt, wire.Attempt, from_attributes=True) for attempt in attempts],
            )
        )

    async def get_status(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        return json_response(await self._report.current())

    async def list_destinations(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        limit, after_id = asking.page_rows(request), asking.cursor(request, "destinations") or ""
        destinations = await ledger.list_destinations(self._pool, after_id=after_id, limit=limit)
        following = None
        if len(destinations) == limit:
            following = asking.cursor_text("destinations", destinations[-1].destination_id)
        return json_response({"destinations": destinations, "next_cursor": following})

    async def get_destination(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        destination_id = asking.storable(request[PATH_VALUES]["destination_id"], "destination_id")
        return json_response(await destination_of(self._pool, destination_id))


async def destination_of(pool: Pool, destination_id: str) -> ledger.DestinationSummary:
    """Raises Refusal where there is none."""
    destination = await ledger.find_destination(pool, destination_id)
    if destination is None:
        raise _not_found("destination", "destination_id")
    return destination


def _states(request: web.BaseRequest) -> tuple[State, ...] | None:
    names = request.query.getall("state", [])
    try:
        states = tuple(dict.fromkeys(State(name) for name in names))
    except ValueError:
        raise Refusal(
            Kind.MALFORMED, "state is none that a delivery has", field="state", mend=f"one of {', '.join(ALL_STATES)}"
        ) from None
    return states or None


def _listing(destination_id: str | None, states: tuple[State, ...] | None) -> tuple[str, tuple[State, ...]]:
    """The list that answers without reading the whole table, and the states to ask it for."""
    asked = states or (ALL_STATES if destination_id is not None else WAITING_STATES)
    if set(asked) <= set(WAITING_STATES):
        return ("waiting" if destination_id is None else "waiting_of_destination"), asked
    if asked == (State.DEAD,):
        return ("dead" if destination_id is None else "dead_of_destination"), asked
    if destination_id is None:
        raise Refusal(
            Kind.INVALID,
            "over all destinations either waiting deliveries are listed, or dead ones alone",
            field="state",
            mend="name a destination, or ask for pending, enqueued and leased, or for dead",
        )
    return "all_of_destination", asked


def _delivery_page(deliveries: Sequence[DeliveryEntry], listing: str, limit: int) -> wire.DeliveryPage:
    following = None
    if len(deliveries) == limit:
        last = deliveries[-1]
        if listing == _OF_EVENT:
            place = last.destination_id
        else:
            time = last.settled_at if listing.startswith("dead") else last.created_at
            place = str(Cursor(time or last.created_at, last.delivery_id))
        following = asking.cursor_text(listing, place)
    return wire.DeliveryPage(deliveries=[_delivery(entry) for entry in deliveries], next_cursor=following)


def _delivery(entry: DeliveryEntry) -> wire.Delivery:
    return msgspec.convert(entry, wire.Delivery, from_attributes=True)


def _event(event: ledger.EventSummary) -> wire.Event:
    return msgspec.convert(event, wire.Event, from_attributes=True)


def _cursor(place: str) -> Cursor:
    try:
        return Cursor.parse(place)
    except ValueError:
        raise asking.bad_cursor() from None


def _not_found(what: str, field: str) -> Refusal:
    return Refusal(Kind.NOT_FOUND, f"there is no such {what}", field=field, mend="check the id, percent-encoded")
