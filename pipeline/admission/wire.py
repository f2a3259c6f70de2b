"""What goes over the wire, as types: requests are validated against them, and /openapi.json is made from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pipeline.admission.problems import Problem

Name = Annotated[str, Meta(min_length=1, max_length=200, description="Name of a destination.")]
EventType = Annotated[str, Meta(min_length=1, max_length=258, description="A type, a prefix as in 'media.*', or '*'.")]
Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339, with its offset.")]
State = Literal["pending", "enqueued", "leased", "succeeded", "dead"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says; members may be added."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller says; a member that is not known is a mistake."""


class DeliveryReceipt(Answer, frozen=True, kw_only=True):
    delivery_id: Annotated[str, Meta(description="Goes out as webhook-id and Idempotency-Key, and never changes.")]
    destination_id: str
    created: Annotated[bool, Meta(description="False: it was admitted before, and nothing changed.")]
    state: State


class Receipt(Answer, frozen=True, kw_only=True):
    """An event that is committed. No receiver was contacted yet."""

    event_id: str
    accepted: Annotated[int, Meta(ge=0, description="Deliveries that this request created.")]
    existing: Annotated[int, Meta(ge=0, description="Deliveries that were there before.")]
    deliveries: list[DeliveryReceipt]


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """CloudEvents 1.0 in its JSON format. Extension attributes stand beside these members."""

    specversion: Literal["1.0"]
    id: Annotated[str, Meta(min_length=1, max_length=2048)]
    source: Annotated[str, Meta(min_length=1, max_length=2048)]
    type: Annotated[str, Meta(min_length=1, max_length=256)]
    datacontenttype: str | UnsetType = UNSET
    dataschema: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET
    time: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    data: Annotated[msgspec.Raw, Meta(description="Any JSON value; its text is the payload.")] | UnsetType = UNSET
    data_base64: Annotated[str, Meta(description="The payload in base64, instead of data.")] | UnsetType = UNSET


class BatchItem(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a batch, with whom it goes to and when."""

    event: Annotated[msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/CloudEvent"})]
    destinations: Annotated[list[Name], Meta(min_length=1)] | UnsetType | None = UNSET
    """None or absent: those subscribed to the event's type."""
    deliver_at: Moment | UnsetType | None = UNSET
    event_id: Annotated[str, Meta(min_length=1, max_length=512)] | UnsetType | None = UNSET
    """For an event that is also admitted by SQL: its id there."""


class ItemResult(Answer, frozen=True, kw_only=True):
    """What became of one item; ``receipt`` with status 202, else ``problem``."""

    status: int
    receipt: Receipt | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class BatchReceipt(Answer, frozen=True, kw_only=True):
    accepted: int
    existing: int
    refused: Annotated[int, Meta(description="Items that changed nothing; each has its problem.")]
    results: Annotated[list[ItemResult], Meta(description="In the order of the items.")]


class Attempt(Answer, frozen=True, kw_only=True):
    attempt: int
    dispatch_seq: int
    result: str
    outcome: str
    status: int | None
    ambiguous: Annotated[bool, Meta(description="The receiver may have applied it without our seeing so.")]
    error: str | None
    retry_after_seconds: float | None
    next_attempt_at: datetime | None
    started_at: datetime
    duration_seconds: float


class Delivery(Answer, frozen=True, kw_only=True):
    delivery_id: str
    event_id: str
    event_type: str
    destination_id: str
    state: State
    attempt: int
    waits_for: Annotated[str | None, Meta(description="Why it is not terminal yet.")]
    looked_at_next: datetime | None
    deliver_at: datetime | None
    last_outcome: str | None
    last_status: int | None
    last_error: str | None
    created_at: datetime
    settled_at: datetime | None


class DeliveryDetail(Delivery, frozen=True, kw_only=True):
    attempts: Annotated[list[Attempt], Meta(description="Newest first, at most 100.")]


class DeliveryPage(Answer, frozen=True, kw_only=True):
    deliveries: list[Delivery]
    next_cursor: Annotated[str | None, Meta(description="Give it as cursor for the next page; null at the end.")]


class Event(Answer, frozen=True, kw_only=True):
    event_id: str
    event_type: str
    content_type: str
    payload_sha256: Annotated[str, Meta(description="Hexadecimal.")]
    headers: dict[str, str]
    admitted_at: datetime


class EventDetail(Event, frozen=True, kw_only=True):
    deliveries: Annotated[list[Delivery], Meta(description="By destination, the first hundred.")]
    next_cursor: Annotated[str | None, Meta(description="For the rest: GET /v1/deliveries with event_id and cursor.")]


class EventPage(Answer, frozen=True, kw_only=True):
    events: list[Event]
    next_cursor: str | None


class DestinationLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Absent members take the ledger's defaults, or stay as they are."""

    start_rate_per_second: Annotated[float, Meta(ge=0.0001, le=100_000)] | UnsetType = UNSET
    burst: Annotated[int, Meta(ge=1, le=100_000)] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=300)] | UnsetType = UNSET
    retry_first_delay_seconds: Annotated[float, Meta(ge=0.01, le=86_400)] | UnsetType = UNSET
    retry_factor: Annotated[float, Meta(ge=1, le=100)] | UnsetType = UNSET
    retry_max_delay_seconds: Annotated[float, Meta(ge=0.01, le=604_800)] | UnsetType = UNSET
    retry_max_attempts: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType = UNSET
    retry_max_age_seconds: Annotated[float, Meta(ge=1, le=315_360_000)] | UnsetType = UNSET


Url = Annotated[str, Meta(min_length=1, max_length=2048, description="https URL that takes the POST.")]
Subscriptions = Annotated[list[EventType], Meta(max_length=1_000)]


class NewDestination(DestinationLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    destination_id: Name
    url: Url
    subscriptions: Subscriptions = []
    verify: bool = False
    """Add it disabled, send a signed ping, and enable it only if the receiver takes that."""


class DestinationChange(DestinationLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Url | UnsetType = UNSET
    subscribe: Subscriptions = []
    unsubscribe: Subscriptions = []


class Reason(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=500, description="Why, for the record.")]


class Rotation(Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    overlap_seconds: Annotated[
        float, Meta(ge=0, le=31_536_000, description="How long the secret before signs too; 0 when it leaked.")
    ] = 86_400.0


class Destination(Answer, frozen=True, kw_only=True):
    destination_id: str
    url: str
    enabled: bool
    disabled_reason: str | None
    start_rate_per_second: float
    burst: int
    concurrency: int
    timeout_seconds: float
    retry_first_delay_seconds: float
    retry_factor: float
    retry_max_delay_seconds: float
    retry_max_attempts: int
    retry_max_age_seconds: float
    subscriptions: list[str]
    created_at: datetime
    updated_at: datetime


class DestinationPage(Answer, frozen=True, kw_only=True):
    destinations: list[Destination]
    next_cursor: str | None


class SigningSecret(Answer, frozen=True, kw_only=True):
    key_id: str
    secret: Annotated[str, Meta(description="whsec_ and base64. It is shown this once.")]


class Verification(Answer, frozen=True, kw_only=True):
    """What the receiver said to a signed ping. Its answer's body is not shown."""

    success: bool
    outcome: str
    status: int | None
    error: str | None
    seconds: float


class DestinationAdded(Answer, frozen=True, kw_only=True):
    destination: Destination
    signing_secret: SigningSecret
    verification: Verification | None


class DestinationVerified(Answer, frozen=True, kw_only=True):
    destination: Destination
    verification: Verification


class StateCounts(Answer, frozen=True, kw_only=True):
    pending: int
    enqueued: int
    leased: int
    succeeded: int
    dead: int


class Status(Answer, frozen=True, kw_only=True):
    counts: StateCounts
    succeeded_is_estimate: bool
    oldest_due_seconds: float
    at: datetime


class Wakeup(Answer, frozen=True, kw_only=True):
    run_id: Annotated[str, Meta(description="The run of the pass that will begin, as outrider runs show knows it.")]
    source: str
