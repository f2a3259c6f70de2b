"""Messages of the dispatch topic, sorted into those that name a delivery and those that nobody can read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from confluent_kafka import Message

from pipeline.offsets.places import Place
from topics.codecs import Dispatch, RecordError, decode_dispatch
from topics.message_headers import Headers, UnreadableHeadersError, headers_of


@dataclass(frozen=True, slots=True)
class Named:
    """A message that says of which delivery it is."""

    place: Place
    message: Message
    dispatch: Dispatch

    @property
    def key(self) -> tuple[str, str]:
        """As the ledger looks it up: the delivery, and the destination that the message is keyed by."""
        return self.dispatch.delivery_id, self.dispatch.destination_id


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is no dispatch of a delivery here, and why."""

    place: Place
    message: Message
    reason: str
    headers: Headers
    """As far as they can be read. The client must not be asked a second time for those that it could not make text of."""


@dataclass(slots=True)
class Sorted:
    named: list[Named] = field(default_factory=list)
    broken: list[Refused] = field(default_factory=list)


def sort_messages(messages: Iterable[tuple[Place, Message]]) -> Sorted:
    """Every message is in one of the two, whatever it holds."""
    found = Sorted()
    for place, message in messages:
        try:
            headers = headers_of(message)
        except UnreadableHeadersError as error:
            found.broken.append(Refused(place, message, str(error), []))
            continue
        dispatch = _read(message, headers)
        if isinstance(dispatch, Dispatch):
            found.named.append(Named(place, message, dispatch))
        else:
            found.broken.append(Refused(place, message, dispatch, headers))
    return found


def _read(message: Message, headers: Headers) -> Dispatch | str:
    decoded = decode_dispatch(message.key(), message.value(), headers)
    if isinstance(decoded, RecordError):
        return str(decoded)
    if "\0" in decoded.delivery_id or "\0" in decoded.destination_id:
        return "delivery_id: holds a character that no id has"
    return decoded
