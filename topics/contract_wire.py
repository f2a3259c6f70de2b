"""What records look like on the wire, part by part: the structs from which the contracts are generated.

Header values are UTF-8 text. A field that may be missing has a default. Words that come from a closed list carry it as an
``enum`` for the contract only: lists grow, so readers must take a word that they do not know, and decoding does.

The records of the connector's own topics are described here and written by ``connectors``, which stands alone and imports
nothing of this package; tests hold the two together.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

Identity: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_024)]
Decimal: TypeAlias = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
DispatchReason: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={"enum": ["admitted", "turn", "due", "lease_expired", "lost", "replay"]},
        description="Why the delivery was handed to Kafka.",
    ),
]
AttemptResult: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={"enum": ["succeeded", "retry", "dead", "late", "lease_expired"]},
        description="What the attempt did to the delivery; late changed nothing.",
    ),
]
AttemptOutcome: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "enum": [
                "success",
                "redirect",
                "throttled",
                "unauthorized",
                "retryable",
                "gone",
                "rejected",
                "server_error",
                "invalid_answer",
                "connection_lost",
                "timeout_after_sent",
                "timeout_before_sent",
                "dns_failed",
                "connect_failed",
                "tls_failed",
                "target_refused",
                "not_sent",
                "lease_expired",
            ]
        },
        description="What happened on the wire.",
    ),
]
Moment: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"}, description="RFC 3339, UTC.")]


class DispatchHeaders(Struct, frozen=True, kw_only=True):
    """The value beside them is the payload, byte for byte as it was admitted."""

    id: Annotated[str, Meta(min_length=1, max_length=1_024, description="Transport identity of this dispatch.")]
    delivery_id: Annotated[
        str, Meta(min_length=1, max_length=1_024, description="Identity of the delivery; never changes.")
    ]
    dispatch_seq: Annotated[
        str, Meta(pattern="^[0-9]{1,10}$", description="Stale unless this is the delivery's current one.")
    ]
    event_id: str | UnsetType = UNSET
    event_type: str | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    reason: DispatchReason | UnsetType = UNSET
    headers: (
        Annotated[str, Meta(description="JSON object of strings: headers of the event; left out where empty.")]
        | UnsetType
    ) = UNSET


class AttemptHeaders(Struct, frozen=True, kw_only=True):
    """Of a record whose value is an ``Attempt``."""

    id: Annotated[str, Meta(pattern="^[0-9]{1,19}$", description="attempt_id")]
    delivery_id: Identity
    result: AttemptResult


class NoHeaders(Struct, frozen=True, kw_only=True):
    """None is promised."""


class SlotKey(Struct, frozen=True, kw_only=True):
    """Which slot a position is of."""

    database: str
    slot: str


class SlotPosition(Struct, frozen=True, kw_only=True):
    """How far a slot is published."""

    system_id: str
    timeline: int
    database: str
    slot: str
    lsn: int
    row: int
    phase: Literal["snapshot", "streaming"] = "streaming"
    as_of_us: Annotated[int, Meta(description="Microseconds since 2000, by the database's clock.")] | None = None
    publication: str | None = None


class PauseKey(SlotKey, frozen=True, kw_only=True):
    """Whether this slot's connector is to rest."""

    kind: Literal["pause"]


class ReleaseKey(SlotKey, frozen=True, kw_only=True):
    """A request to publish rows in quarantine, and its answer."""

    kind: Literal["release"]
    release_id: str


class HeldKey(SlotKey, frozen=True, kw_only=True):
    """A key whose later rows wait."""

    kind: Literal["held"]
    table: str
    key: bytes | UnsetType = UNSET


class PauseWish(Struct, frozen=True, kw_only=True):
    """The last word counts."""

    is_paused: bool
    operator: str
    reason: str
    at: str


class ReleaseSelection(Struct, frozen=True, kw_only=True):
    """Entries by number, or all below ``until`` that match."""

    entries: tuple[int, ...] = ()
    until: int = 0
    table: str | None = None
    key: bytes | None = None


class ReleaseRefusal(Struct, frozen=True, kw_only=True):
    """An entry that still cannot be published."""

    entry: int
    reason: str


class ReleaseOutcome(Struct, frozen=True, kw_only=True):
    """Numbers of rows."""

    released: int = 0
    gone: int = 0
    given_up: int = 0
    refused: int = 0
    waiting: int = 0
    refusals: tuple[ReleaseRefusal, ...] = ()


class ReleaseWish(Struct, frozen=True, kw_only=True):
    """Open while ``outcome`` is null."""

    selection: ReleaseSelection
    operator: str
    reason: str
    at: str
    gives_up: bool = False
    outcome: ReleaseOutcome | None = None


class HeldReason(Struct, frozen=True, kw_only=True):
    """Why a key is held."""

    reason: str
    row_id: str | None
    lsn: str


class RefusedRowHeaders(Struct, frozen=True, kw_only=True):
    """Beside them stand those of the refused record, unless they are large."""

    quarantine_reason: str
    quarantine_table: str


class RefusedRow(Struct, frozen=True, kw_only=True):
    """A row that could not be published."""

    database: str
    table: str
    topic: str
    reason: str
    lsn: str
    row: int
    value_bytes: int | None = None
    id: str | None = None
    columns: dict[str, str] = {}
    is_held: bool = False


class RefusedMessageHeaders(Struct, frozen=True, kw_only=True):
    """Of a message that a worker could not read; the value is that message's own."""

    quarantine_reason: str
    quarantine_origin: Annotated[str, Meta(description="topic/partition/offset where it lies")]
    quarantine_left_out: str | UnsetType = UNSET


class MarkHeaders(Struct, frozen=True, kw_only=True):
    """Of a mark, which settles earlier entries."""

    quarantine_mark: Annotated[str, Meta(extra_json_schema={"enum": ["released", "gone", "given_up"]})]


class SettledMark(Struct, frozen=True, kw_only=True):
    """Entries by their offsets in this topic's partition."""

    state: Annotated[str, Meta(extra_json_schema={"enum": ["released", "gone", "given_up"]})]
    entries: tuple[int, ...]
    operator: str
    reason: str
    at: str
