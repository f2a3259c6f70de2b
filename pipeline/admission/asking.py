"""What a handler reads out of a request: query parameters and JSON bodies, each mistake with its field."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec
from aiohttp import web

from pipeline.admission.cloudevents import JSON, Routing
from pipeline.admission.json_bounds import DEPTH_MAX, depth
from pipeline.admission.operations import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Operation
from pipeline.admission.problems import Kind, Refusal, refusal_of_validation

Body = TypeVar("Body")
CURSOR_LENGTH_MAX = 1_024
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, and what stands for bytes that were no UTF-8."""


@dataclass(frozen=True, slots=True)
class MediaType:
    essence: str
    """Type and subtype in lower case; empty where the request names none."""
    text: str
    """As it was sent."""


def media_type(request: web.BaseRequest) -> MediaType:
    """Raises Refusal for JSON in another charset than UTF-8."""
    text = request.headers.get("Content-Type", "").strip()
    essence, _, parameters = text.partition(";")
    essence = essence.strip().lower()
    if essence.endswith("json"):
        for parameter in parameters.split(";"):
            name, _, value = parameter.partition("=")
            if name.strip().lower() == "charset" and value.strip(' "').lower() not in ("utf-8", "utf8", "us-ascii"):
                raise Refusal(
                    Kind.MEDIA_TYPE, f"charset {value.strip()} is not understood", "Content-Type", "send UTF-8"
                )
    return MediaType(essence, text)


def check_query(request: web.BaseRequest, operation: Operation) -> None:
    """Raises Refusal for a parameter that the operation does not have: a slip of the pen must not change who gets it."""
    for name in request.query:
        if name not in operation.query_names:
            names = ", ".join(sorted(operation.query_names)) or "none"
            raise _malformed(name, f"{name} is no parameter of this operation", f"it has: {names}")


def one(request: web.BaseRequest, name: str) -> str | None:
    """The parameter's only value. Raises Refusal where it is empty or repeated."""
    values = request.query.getall(name, [])
    if len(values) > 1:
        raise _malformed(name, f"{name} is given {len(values)} times", "give it once")
    if values and not values[0]:
        raise _malformed(name, f"{name} is empty", "leave it out, or give it a value")
    return storable(values[0], name) if values else None


def storable(text: str, name: str) -> str:
    """The text, if PostgreSQL can hold it. Raises Refusal."""
    if _NOT_STORABLE.search(text):
        raise _malformed(name, f"{name} has a NUL in it, or is not UTF-8", "percent-encode UTF-8 without NUL")
    return text


def routing(request: web.BaseRequest) -> Routing:
    """Destinations, ``deliver_at`` and ``event_id`` of the query. Raises Refusal."""
    destinations = tuple(storable(value, "destination") for value in request.query.getall("destination", []))
    return Routing(destinations=destinations or None, deliver_at=_moment(request), event_id=one(request, "event_id"))


def _moment(request: web.BaseRequest) -> datetime | None:
    text = one(request, "deliver_at")
    if text is None:
        return None
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise _malformed("deliver_at", "deliver_at is no RFC 3339 time with an offset", "write 2030-01-31T12:00:00Z")
    return moment


def flag(request: web.BaseRequest, name: str) -> bool:
    text = one(request, name)
    if text not in (None, "true", "false"):
        raise _malformed(name, f"{name} is neither true nor false", "write true or false")
    return text == "true"


def page_rows(request: web.BaseRequest) -> int:
    text = one(request, "limit")
    if text is None:
        return PAGE_ROWS_DEFAULT
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= PAGE_ROWS_MAX):
        raise _malformed("limit", f"limit is no number from 1 to {PAGE_ROWS_MAX}", f"at most {PAGE_ROWS_MAX}")
    return int(text)


def cursor(request: web.BaseRequest, listing: str) -> str | None:
    """The place where the page before ended, in a list of this name. Raises Refusal."""
    text = one(request, "cursor")
    if text is None:
        return None
    try:
        kind, _, place = (
            base64.b64decode(text[:CURSOR_LENGTH_MAX], altchars=b"-_", validate=True).decode().partition(" ")
        )
    except (binascii.Error, ValueError):
        kind, place = "", ""
    if kind != listing or not place or "\0" in place:
        raise bad_cursor()
    return place


def bad_cursor() -> Refusal:
    return _malformed("cursor", "cursor is none of this list", "give next_cursor of the page before, unchanged")


def cursor_text(listing: str, place: str) -> str:
    return base64.urlsafe_b64encode(f"{listing} {place}".encode()).decode()


def decode(body: bytes, kind: type[Body]) -> Body:
    """JSON as this type. Raises Refusal."""
    check_depth(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise as_refusal(error) from None


def check_depth(document: bytes) -> None:
    if depth(document) > DEPTH_MAX:
        raise _malformed("body", f"the JSON nests deeper than {DEPTH_MAX}", "flatten it, or send it in binary mode")


def as_refusal(error: Exception) -> Refusal:
    """What a decoder says about a body, as a problem."""
    if isinstance(error, msgspec.DecodeError):
        return refusal_of_validation(error)
    return _malformed("body", "the body is not valid JSON in UTF-8", "send JSON in UTF-8")


def expect_json(request: web.BaseRequest) -> None:
    """Raises Refusal where the body is said to be something else."""
    essence = media_type(request).essence
    if essence != JSON:
        raise Refusal(
            Kind.MEDIA_TYPE, f"{essence or 'no content type'} is not understood here", "Content-Type", f"send {JSON}"
        )


def _malformed(field: str, detail: str, mend: str) -> Refusal:
    return Refusal(Kind.MALFORMED, detail, field=field, mend=mend)
