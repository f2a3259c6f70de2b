"""Every operation of the API as data: routes, scopes and /openapi.json are made from this one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pipeline.admission import wire
from pipeline.admission.cloudevents import BATCHED, JSON, STRUCTURED
from pipeline.admission.problems import Kind
from pipeline.ledger.api_keys import Scope

NDJSON = "application/x-ndjson"
PAGE_ROWS_DEFAULT = 100
PAGE_ROWS_MAX = 500
ATTRIBUTES = ("specversion", "id", "source", "type", "time", "subject", "dataschema")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str
    """``query``, ``path`` or ``header``."""
    schema: Schema
    description: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    operation_id: str
    method: str
    path: str
    scope: Scope
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    bodies: Mapping[str, Any] = field(default_factory=dict)
    """Content type to the body's type; a mapping is a schema by itself."""
    status: int
    answer: Any
    problems: tuple[Kind, ...] = ()

    @property
    def query_names(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")


def _query(name: str, schema: Schema, description: str) -> Parameter:
    return Parameter(name, "query", schema, description)


def _path(name: str, description: str) -> Parameter:
    return Parameter(name, "path", {"type": "string", "minLength": 1}, description, required=True)


_BYTES: Schema = MappingProxyType({"type": "string", "format": "binary"})
_ROUTING = (
    _query(
        "destination",
        {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "minItems": 1},
        "Whom it goes to; repeat it for several. Without it: those subscribed to the type.",
    ),
    _query("deliver_at", {"type": "string", "format": "date-time"}, "Not before this time."),
)
_EVENT_ID = _query(
    "event_id",
    {"type": "string", "minLength": 1, "maxLength": 512},
    "For an event that is also admitted by SQL: its id there. Otherwise the id comes from source and id.",
)
_ATTRIBUTES = tuple(
    Parameter(f"ce-{name}", "header", {"type": "string"}, f"CloudEvents attribute {name}, in binary mode.")
    for name in ATTRIBUTES
)
_PAGE = (
    _query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX, "default": PAGE_ROWS_DEFAULT},
        "Entries in one page.",
    ),
    _query("cursor", {"type": "string", "minLength": 1, "maxLength": 1_024}, "next_cursor of the page before."),
)
_DESTINATION = _path("destination_id", "Name of the destination, percent-encoded.")
_ADMISSION_PROBLEMS = (
    Kind.CONFLICT,
    Kind.TOO_LARGE,
    Kind.MEDIA_TYPE,
    Kind.INVALID,
    Kind.UNKNOWN_DESTINATION,
    Kind.DISABLED_DESTINATION,
    Kind.SLOW,
)
_WRITING_PROBLEMS = (Kind.TOO_LARGE, Kind.MEDIA_TYPE, Kind.INVALID, Kind.SLOW)

OPERATIONS = (
    Operation(
        operation_id="admitEvent",
        method="POST",
        path="/v1/events",
        scope=Scope.ADMIT,
        summary="Admit one CloudEvent",
        description=(
            "Binary mode: attributes as ce-… headers, any content type, and the body is the payload, byte for byte. "
            f"Structured mode: {STRUCTURED}. The answer comes after the commit; no receiver is contacted before. "
            "The same event again is answered with accepted 0; the same identity with other bytes is a conflict."
        ),
        parameters=(*_ROUTING, _EVENT_ID, *_ATTRIBUTES),
        bodies={"*/*": _BYTES, STRUCTURED: wire.CloudEvent},
        status=202,
        answer=wire.Receipt,
        problems=_ADMISSION_PROBLEMS,
    ),
    Operation(
        operation_id="admitBatch",
        method="POST",
        path="/v1/events:batch",
        scope=Scope.ADMIT,
        summary="Admit many events in one transaction",
        description=(
            "Every item has its result. One that is refused changes nothing and the others stand, unless atomic is "
            f"true: then one refused item refuses the batch. {JSON} is an array of items, {NDJSON} one item a line, "
            f"{BATCHED} an array of CloudEvents that all go where the query says."
        ),
        parameters=(
            *_ROUTING,
            _query("atomic", {"type": "boolean", "default": False}, "All items, or none."),
        ),
        bodies={
            JSON: list[wire.BatchItem],
            NDJSON: MappingProxyType({"type": "string", "description": "One item a line."}),
            BATCHED: list[wire.CloudEvent],
        },
        status=202,
        answer=wire.BatchReceipt,
        problems=_ADMISSION_PROBLEMS,
    ),
    Operation(
        operation_id="listEvents",
        method="GET",
        path="/v1/events",
        scope=Scope.READ,
        summary="List events, the newest first",
        parameters=_PAGE,
        status=200,
        answer=wire.EventPage,
    ),
    Operation(
        operation_id="getEvent",
        method="GET",
        path="/v1/events/{event_id}",
        scope=Scope.READ,
        summary="Show an event and where its deliveries stand",
        parameters=(_path("event_id", "As the receipt gave it, percent-encoded."),),
        status=200,
        answer=wire.EventDetail,
        problems=(Kind.NOT_FOUND,),
    ),
    Operation(
        operation_id="listDeliveries",
        method="GET",
        path="/v1/deliveries",
        scope=Scope.READ,
        summary="List deliveries",
        description=(
            "Of one event, by destination; of one destination, or of all, the oldest first. Without event_id and "
            "destination either those that are not terminal are listed, or the dead ones."
        ),
        parameters=(
            _query("event_id", {"type": "string", "minLength": 1, "maxLength": 512}, "Only those of this event."),
            _query("destination", {"type": "string", "minLength": 1, "maxLength": 200}, "Only those for it."),
            _query(
                "state",
                {
                    "type": "array",
                    "items": {"type": "string", "enum": ["pending", "enqueued", "leased", "succeeded", "dead"]},
                    "minItems": 1,
                    "maxItems": 5,
                },
                "Only those in this state; repeat it for several.",
            ),
            *_PAGE,
        ),
        status=200,
        answer=wire.DeliveryPage,
        problems=(Kind.INVALID,),
    ),
    Operation(
        operation_id="getDelivery",
        method="GET",
        path="/v1/deliveries/{delivery_id}",
        scope=Scope.READ,
        summary="Show a delivery and its attempts",
        parameters=(_path("delivery_id", "dlv_ and 32 hex digits."),),
        status=200,
        answer=wire.DeliveryDetail,
        problems=(Kind.NOT_FOUND,),
    ),
    Operation(
        operation_id="getStatus",
        method="GET",
        path="/v1/status",
        scope=Scope.READ,
        summary="How many deliveries stand where",
        status=200,
        answer=wire.Status,
    ),
    Operation(
        operation_id="addDestination",
        method="POST",
        path="/v1/destinations",
        scope=Scope.OPERATE,
        summary="Add a destination",
        description=(
            "The signing secret is in this answer and never again. With verify it is added disabled, a signed ping "
            "goes out, and it is enabled only if the receiver takes that; else it stays disabled and can be verified "
            "again."
        ),
        bodies={JSON: wire.NewDestination},
        status=201,
        answer=wire.DestinationAdded,
        problems=(Kind.EXISTS, *_WRITING_PROBLEMS),
    ),
    Operation(
        operation_id="listDestinations",
        method="GET",
        path="/v1/destinations",
        scope=Scope.READ,
        summary="List destinations by name",
        parameters=_PAGE,
        status=200,
        answer=wire.DestinationPage,
    ),
    Operation(
        operation_id="getDestination",
        method="GET",
        path="/v1/destinations/{destination_id}",
        scope=Scope.READ,
        summary="Show a destination",
        parameters=(_DESTINATION,),
        status=200,
        answer=wire.Destination,
        problems=(Kind.NOT_FOUND,),
    ),
    Operation(
        operation_id="changeDestination",
        method="PATCH",
        path="/v1/destinations/{destination_id}",
        scope=Scope.OPERATE,
        summary="Change what is given, and nothing else",
        parameters=(_DESTINATION,),
        bodies={JSON: wire.DestinationChange},
        status=200,
        answer=wire.Destination,
        problems=(Kind.NOT_FOUND, *_WRITING_PROBLEMS),
    ),
    Operation(
        operation_id="enableDestination",
        method="POST",
        path="/v1/destinations/{destination_id}/enable",
        scope=Scope.OPERATE,
        summary="Let deliveries start; what waited is due at once",
        parameters=(_DESTINATION,),
        bodies={JSON: wire.Reason},
        status=200,
        answer=wire.Destination,
        problems=(Kind.NOT_FOUND, *_WRITING_PROBLEMS),
    ),
    Operation(
        operation_id="disableDestination",
        method="POST",
        path="/v1/destinations/{destination_id}/disable",
        scope=Scope.OPERATE,
        summary="Hold deliveries: they wait, and none is lost",
        parameters=(_DESTINATION,),
        bodies={JSON: wire.Reason},
        status=200,
        answer=wire.Destination,
        problems=(Kind.NOT_FOUND, *_WRITING_PROBLEMS),
    ),
    Operation(
        operation_id="verifyDestination",
        method="POST",
        path="/v1/destinations/{destination_id}/verify",
        scope=Scope.OPERATE,
        summary="Send a signed ping, and enable the destination if the receiver takes it",
        parameters=(_DESTINATION,),
        status=200,
        answer=wire.DestinationVerified,
        problems=(Kind.NOT_FOUND, Kind.VERIFICATION),
    ),
    Operation(
        operation_id="rotateSecret",
        method="POST",
        path="/v1/destinations/{destination_id}/rotate-secret",
        scope=Scope.OPERATE,
        summary="Make a new signing secret; it is shown this once",
        parameters=(_DESTINATION,),
        bodies={JSON: wire.Rotation},
        status=201,
        answer=wire.SigningSecret,
        problems=(Kind.NOT_FOUND, *_WRITING_PROBLEMS),
    ),
    Operation(
        operation_id="wakeSource",
        method="POST",
        path="/v1/wakeups/{source}",
        scope=Scope.WAKE,
        summary="Make a pass over a source begin",
        description=(
            "A wake-up says that a reconciler should look, and carries no meaning: calling again is harmless. Calls that "
            "no pass has taken yet are answered with the same run. A body is ignored."
        ),
        parameters=(_path("source", "Id of the source, percent-encoded."),),
        status=202,
        answer=wire.Wakeup,
        problems=(Kind.NOT_FOUND,),
    ),
)
