"""``POST /v1/events`` and ``POST /v1/events:batch``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import psycopg
from aiohttp import web

from pipeline.admission import asking
from pipeline.admission.answers import json_response
from pipeline.admission.batch_bodies import Item, items_of
from pipeline.admission.cloudevents import BATCHED, STRUCTURED, from_binary, from_structured
from pipeline.admission.gathering import COMMIT_SECONDS_MAX, Gathering
from pipeline.admission.intake import Door
from pipeline.admission.key_ring import Caller
from pipeline.admission.metrics import EVENTS
from pipeline.admission.problems import Kind, Problem, Refusal, refusal_of, unavailable
from pipeline.admission.wire import BatchReceipt, DeliveryReceipt, ItemResult, Receipt
from pipeline.ledger.admission import Admitted, EventToAdmit, Refused, admit_many
from pipeline.ledger.pool import Pool


class EventEndpoints:
    def __init__(
        self, pool: Pool, gathering: Gathering, door: Door, *, body_bytes_max: int, batch_bytes_max: int,
        batch_items_max: int, batches_max: int,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._gathering = gathering
        self._door = door
        self._body_bytes_max = body_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._batch_items_max = batch_items_max
        self._batch_places = asyncio.Semaphore(batches_max)

    async def admit_event(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """One event, which shares its commit with those that come at the same time."""
        media_type, routing = asking.media_type(request), asking.routing(request)
        async with self._door.body(request, caller.meter, bytes_max=self._body_bytes_max) as body:
            if media_type.essence == STRUCTURED:
                asking.check_depth(body)
                try:
                    event = from_structured(body, routing)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise asking.as_refusal(error) from None
            elif media_type.essence.startswith("application/cloudevents"):
                mend = "POST it to /v1/events:batch" if media_type.essence == BATCHED else f"send {STRUCTURED}"
                raise Refusal(Kind.MEDIA_TYPE, f"{media_type.essence} is not understood here", "Content-Type", mend)
            else:
                event = from_binary(request.headers.items(), media_type.text, body, routing)
            answer = await self._gathering.admit(event)
        if isinstance(answer, Refused):
            EVENTS.labels("refused").inc()
            raise refusal_of(answer)
        receipt = _receipt(event, answer)
        EVENTS.labels("accepted" if receipt.accepted else "existing").inc()
        return json_response(receipt, 202)

    async def admit_batch(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """All items in one transaction of their own."""
        media_type, routing, atomic = (
            asking.media_type(request),
            asking.routing(request),
            asking.flag(request, "atomic"),
        )
        async with self._door.body(request, caller.meter, bytes_max=self._batch_bytes_max) as body:
            items = items_of(body, media_type.essence, routing, items_max=self._batch_items_max)
            if atomic:
                _refuse_whole([_problem(place, item) for place, item in enumerate(items) if isinstance(item, Refusal)])
            events = [item for item in items if isinstance(item, EventToAdmit)]
            try:
                async with asyncio.timeout(COMMIT_SECONDS_MAX), self._batch_places:
                    answers = await self._commit(items, events, atomic=atomic)
            except TimeoutError:
                raise unavailable(f"no commit within {COMMIT_SECONDS_MAX:g} s") from None
            except psycopg.errors.LockNotAvailable:
                raise unavailable("another transaction holds one of the events", 1.0) from None
        results = _results(items, answers)
        receipts = [result.receipt for result in results if isinstance(result.receipt, Receipt)]
        batch = BatchReceipt(
            accepted=sum(receipt.accepted for receipt in receipts),
            existing=sum(receipt.existing for receipt in receipts),
            refused=len(results) - len(receipts),
            results=results,
        )
        EVENTS.labels("refused").inc(batch.refused)
        for receipt in receipts:
            EVENTS.labels("accepted" if receipt.accepted else "existing").inc()
        return json_response(batch, 202)

    async def _commit(
        self, items: Sequence[Item], events: Sequence[EventToAdmit], *, atomic: bool
    ) -> list[Admitted | Refused]:
        if not events:
            return []
        async with self._pool.connection() as connection, connection.transaction():
            answers = await admit_many(connection, events)
            if atomic:
                # Leaves the transaction, which rolls everything back.
                _refuse_whole(
                    [
                        _problem(place, refusal_of(answer))
                        for place, answer in enumerate(answers)
                        if isinstance(answer, Refused)
                    ]
                )
        return answers


def _refuse_whole(errors: list[Problem]) -> None:
    if errors:
        raise Refusal(
            Kind.INVALID,
            f"{len(errors)} items cannot be admitted, so nothing was",
            field="body",
            mend="mend these items, or send the batch without atomic",
            errors=tuple(errors),
        )


def _results(items: Sequence[Item], answers: Sequence[Admitted | Refused]) -> list[ItemResult]:
    left = iter(answers)
    results = []
    for place, item in enumerate(items):
        answer = item if isinstance(item, Refusal) else next(left)
        if isinstance(answer, Refused):
            answer = refusal_of(answer)
        if isinstance(answer, Refusal):
            results.append(ItemResult(status=answer.kind.status, problem=_problem(place, answer)))
        elif isinstance(item, EventToAdmit):
            results.append(ItemResult(status=202, receipt=_receipt(item, answer)))
    return results


def _problem(place: int, refusal: Refusal) -> Problem:
    return refusal.problem(place)


def _receipt(event: EventToAdmit, admitted: Admitted) -> Receipt:
    deliveries = [
        DeliveryReceipt(
            delivery_id=made.delivery_id,
            destination_id=made.destination_id,
            created=made.created,
            state=made.state,  # type: ignore[arg-type]  # the table's check has the same words
        )
        for made in admitted.deliveries
    ]
    accepted = sum(delivery.created for delivery in deliveries)
    return Receipt(
        event_id=event.event_id, accepted=accepted, existing=len(deliveries) - accepted, deliveries=deliveries
    )
