"""CloudEvents 1.0 over HTTP, binary and structured mode, as events to admit. Pure.

What becomes what:

- ``event_id`` is a hash of ``source`` and ``id``, each preceded by its length: together they identify a CloudEvent, and
  alone neither does. A caller whose event is also admitted by SQL gives the id used there as a query parameter.
- ``type`` is the event type, which subscriptions are matched with.
- The data is the payload, byte for byte. In structured mode that is the JSON text of ``data`` as it stands in the
  request, the string itself where ``datacontenttype`` is not JSON, or what ``data_base64`` decodes to.
- Every attribute, extensions too, goes out to receivers as a ``ce-…`` header: they get the event in binary mode, in
  whatever mode it came.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote_to_bytes

import msgspec

from pipeline.admission.problems import Kind, Refusal
from pipeline.ledger.admission import EventToAdmit

SPECIFICATION = "1.0"
STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
JSON = "application/json"
BYTES = "application/octet-stream"
PREFIX = "ce-"
ATTRIBUTES_MAX = 30
EVENT_ID_BYTES_MAX = 512
VALUE_LENGTH_MAX = 2_048

_NAME = re.compile(r"[a-z0-9]{1,32}")
# What the binding neither escapes nor strips.
_PLAIN = re.compile(r"[!#$&-~]*")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
_LENGTH = struct.Struct(">i")
# The binding escapes what is no printable ASCII, and space, double quote and percent.
_UNESCAPED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_simple = msgspec.json.Decoder(str | int | bool | None)
_string = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What is not part of the CloudEvent: whom it goes to and when, and its id in the ledger if that is given."""

    destinations: tuple[str, ...] | None = None
    deliver_at: datetime | None = None
    event_id: str | None = None


def event_identity(source: str, cloudevent_id: str) -> str:
    """``evt_`` and 32 hex digits. The same in every mode, and for no other pair."""
    hasher = hashlib.sha256()
    for part in ("cloudevent", source, cloudevent_id):
        encoded = part.encode()
        hasher.update(_LENGTH.pack(len(encoded)))
        hasher.update(encoded)
    return f"evt_{hasher.hexdigest()[:32]}"


def from_binary(headers: Iterable[tuple[str, str]], content_type: str, body: bytes, routing: Routing) -> EventToAdmit:
    """The attributes are headers, the body is the data. Raises Refusal."""
    attributes: dict[str, str] = {}
    for name, value in headers:
        if name[:3].lower() != PREFIX:
            continue
        attribute = name[3:].lower()
        if attribute in attributes:
            raise _malformed(PREFIX + attribute, "is given twice", "send it once")
        attributes[attribute] = _from_header(PREFIX + attribute, value)
    if "datacontenttype" in attributes:
        raise _malformed("ce-datacontenttype", "stands in the way of Content-Type", "send Content-Type alone")
    if "specversion" not in attributes:
        raise _malformed(
            "ce-specversion",
            "is missing, so this is no CloudEvent",
            f"send ce-specversion, ce-id, ce-source and ce-type as headers, or one JSON document as {STRUCTURED}",
        )
    return _event(attributes, PREFIX, content_type or BYTES, body, routing)


def from_structured(document: bytes, routing: Routing) -> EventToAdmit:
    """One JSON object with the attributes and the data. Raises Refusal, msgspec.DecodeError or ValidationError."""
    members = _object.decode(document)
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    attributes = {}
    for name, raw in members.items():
        value = _attribute(name, raw)
        if value is not None:
            attributes[name] = value
    content_type = attributes.pop("datacontenttype", None)
    if data is not None and encoded is not None:
        raise _malformed("data_base64", "stands beside data", "send one of them")
    if encoded is not None:
        return _event(attributes, "", content_type or BYTES, _from_base64(encoded), routing)
    payload = b"" if data is None else _payload(bytes(data), content_type or JSON)
    return _event(attributes, "", content_type or JSON, payload, routing)


def is_json(content_type: str) -> bool:
    """Whether the data is JSON by its media type."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence.endswith(("/json", "+json"))


def _event(
    attributes: dict[str, str], prefix: str, content_type: str, payload: bytes, routing: Routing
) -> EventToAdmit:
    if len(attributes) > ATTRIBUTES_MAX:
        raise _malformed("extension attribute", f"is one of more than {ATTRIBUTES_MAX}", "leave some out")
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise _malformed(prefix + name, "is no attribute's name", "use 1 to 32 lower-case letters and digits")
        if not value.isprintable():
            raise _malformed(prefix + name, "has a control character in it", "leave it out")
        if len(value) > VALUE_LENGTH_MAX:
            raise _malformed(prefix + name, f"has more than {VALUE_LENGTH_MAX} characters", "put it into the data")
    if attributes.get("specversion") != SPECIFICATION:
        raise _malformed(f"{prefix}specversion", f"must be {SPECIFICATION}", f"send CloudEvents {SPECIFICATION}")
    for name in ("id", "source", "type"):
        if not attributes.get(name):
            raise _malformed(prefix + name, "is missing or empty", "every CloudEvent has id, source and type")
    if "time" in attributes and not _TIME.fullmatch(attributes["time"]):
        raise _malformed(f"{prefix}time", "is no RFC 3339 time", "write it as 2030-01-31T12:00:00Z")
    return EventToAdmit(
        event_id=routing.event_id or event_identity(attributes["source"], attributes["id"]),
        event_type=attributes["type"],
        payload=payload,
        content_type=content_type,
        headers={PREFIX + name: _to_header(value) for name, value in attributes.items()},
        destinations=routing.destinations,
        deliver_at=routing.deliver_at,
    )


def _to_header(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_UNESCAPED)


def _from_header(name: str, value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    try:
        return unquote_to_bytes(value.strip().encode()).decode()
    except UnicodeError:
        raise _malformed(name, "is not UTF-8", "percent-encode the UTF-8 bytes of what is outside ASCII") from None


def _attribute(name: str, raw: msgspec.Raw) -> str | None:
    try:
        value = _simple.decode(raw)
    except msgspec.ValidationError:
        raise _malformed(name, "is no string, integer or boolean", "put structures into data") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _payload(raw: bytes, content_type: str) -> bytes:
    if is_json(content_type):
        return raw
    try:
        return _string.decode(raw).encode()
    except msgspec.ValidationError:
        raise _malformed("data", f"is no string, as {content_type} needs", "send it as data_base64") from None


def _from_base64(raw: msgspec.Raw) -> bytes:
    try:
        return base64.b64decode(_string.decode(raw), validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError):
        raise _malformed("data_base64", "is no base64 string", "encode it as RFC 4648, section 4") from None


def _malformed(field: str, what: str, mend: str) -> Refusal:
    return Refusal(Kind.MALFORMED, f"{field} {what}", field=field, mend=mend)
