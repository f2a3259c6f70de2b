"""Every error of the API: RFC 9457 problem details, with the field that is wrong and how to mend it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import msgspec
from aiohttp import web

from pipeline.ledger.admission import Refused

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:outrider:problem:"


class Kind(Enum):
    """Status, name and title. The name ends the URN in ``type``, and stays what it is."""

    MALFORMED = (400, "malformed-request", "The request cannot be understood")
    UNAUTHENTICATED = (401, "unauthenticated", "An API key is needed")
    FORBIDDEN = (403, "forbidden", "The API key may not do this")
    NOT_FOUND = (404, "not-found", "There is no such thing")
    METHOD = (405, "method-not-allowed", "The path does not take this method")
    SLOW = (408, "slow-request", "The body did not arrive in time")
    CONFLICT = (409, "identity-conflict", "This identity was admitted before with another content")
    EXISTS = (409, "exists", "It is there already")
    VERIFICATION = (409, "verification-failed", "The receiver did not take the signed ping")
    TOO_LARGE = (413, "too-large", "The content is above the limit")
    MEDIA_TYPE = (415, "unsupported-media-type", "The content type is not understood here")
    INVALID = (422, "invalid", "A value is not allowed")
    UNKNOWN_DESTINATION = (422, "unknown-destination", "A destination is unknown")
    DISABLED_DESTINATION = (422, "disabled-destination", "A destination is disabled")
    TOO_MANY = (429, "too-many-requests", "The limit of the API key is reached")
    DEFECT = (500, "defect", "The server failed")
    UNAVAILABLE = (503, "unavailable", "The ledger cannot be reached now; nothing was answered for")

    def __init__(self, status: int, slug: str, title: str) -> None:
        self.status = status
        self.slug = slug
        self.title = title


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457. ``field`` names the header, parameter or member that is wrong; ``mend`` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    mend: str | None = None
    place: int | None = None
    """In a batch: which item, counted from 0."""
    errors: tuple[Problem, ...] = ()
    """Of a batch that was refused whole: what was in the way."""


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - it is what the caller is told
    """Ends the handling of a request with a problem."""

    kind: Kind
    detail: str
    field: str | None = None
    mend: str | None = None
    retry_after_seconds: float | None = None
    allow: str | None = None
    errors: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(self.detail)

    def problem(self, place: int | None = None) -> Problem:
        return Problem(
            type=TYPE_PREFIX + self.kind.slug,
            title=self.kind.title,
            status=self.kind.status,
            detail=self.detail,
            field=self.field,
            mend=self.mend,
            place=place,
            errors=self.errors,
        )

    def response(self) -> web.Response:
        return web.Response(
            status=self.kind.status,
            body=msgspec.json.encode(self.problem()),
            headers={**self._headers(), "Content-Type": CONTENT_TYPE},
        )

    def _headers(self) -> dict[str, str]:
        headers = {}
        if self.kind is Kind.UNAUTHENTICATED:
            headers["WWW-Authenticate"] = 'Bearer realm="outrider"'
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_seconds)))
        if self.allow is not None:
            headers["Allow"] = self.allow
        return headers


def unavailable(detail: str, retry_after_seconds: float = 2.0) -> Refusal:
    """The ledger is away or busy: nothing is promised, and the same request may be sent again."""
    return Refusal(
        Kind.UNAVAILABLE,
        detail,
        mend="send the same request again after Retry-After; repeating it is safe",
        retry_after_seconds=retry_after_seconds,
    )


_KINDS_BY_SQLSTATE = {
    "OU001": Kind.CONFLICT,
    "OU002": Kind.UNKNOWN_DESTINATION,
    "OU003": Kind.DISABLED_DESTINATION,
    "OU004": Kind.TOO_LARGE,
    "OU005": Kind.INVALID,
}
# The ledger's messages begin with the argument; callers of the API know it by another name.
_FIELDS_BY_FIRST_WORD = {
    "event_id": "id",
    "event_type": "type",
    "content_type": "datacontenttype",
    "payload": "data",
    "destinations": "destination",
    "destination": "destination",
    "deliver_at": "deliver_at",
    "header": "extension attribute",
    "headers": "extension attribute",
    "event": "id",
    "an": "destination",
}


def refusal_of(refused: Refused) -> Refusal:
    """The ledger's refusal of one event, as a problem."""
    return Refusal(
        _KINDS_BY_SQLSTATE[refused.sqlstate],
        refused.message,
        field=_FIELDS_BY_FIRST_WORD.get(refused.message.split(" ", 1)[0]),
        mend=refused.hint,
    )


def refusal_of_validation(error: msgspec.ValidationError | msgspec.DecodeError) -> Refusal:
    """What msgspec found wrong with a body: malformed JSON is 400, a value that is not allowed 422."""
    text = str(error)
    detail, _, path = text.partition(" - at `$")
    if isinstance(error, msgspec.ValidationError):
        return Refusal(
            Kind.INVALID, detail, field=path.rstrip("`").lstrip(".") or None, mend="see the schema in /openapi.json"
        )
    return Refusal(Kind.MALFORMED, f"the body is not valid JSON: {text}", field="body", mend="send JSON in UTF-8")
