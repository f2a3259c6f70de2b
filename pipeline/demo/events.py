"""The demo's events: what is admitted, for whom, with which awkward bytes. Pure, and the same under the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.demo.destinations import Target, subscribers

PROCESSED = "media.processed"
ARCHIVED = "media.archived"
"""The type that the subscribers get without being named."""

ROLLED_BACK_SHARE = 0.05
READMITTED_SHARE = 0.03
SCHEDULED_SHARE = 0.03
SUBSCRIBED_SHARE = 0.08
FAN_OUT_SHARE = 0.05
AWKWARD_EVERY = 11
HANGING_MAX = 40
"""Deliveries for the hanging destination, each of which holds one of its places for a whole time-out."""
DELAY_SECONDS_MAX = 5.0

End = Literal["commit", "rollback", "failure", "disconnect"]
"""How the transaction ends: disconnect closes the connection in the middle, failure breaks a constraint."""

AWKWARD_BODIES: tuple[tuple[str, bytes], ...] = (
    ("application/json", b'{"z":1, "a":2,\t"a":3 ,"n":1.0e0,"big":12345678901234567890}\r\n'),
    ("application/json", '{"title": "Übergröße 💾", "line": "a\u2028b"}'.encode()),
    ("application/json", b'"\\ud83d\\ude00 escaped, \\u0000 too"'),
    ("application/octet-stream", b""),
    ("application/octet-stream", b"\x00\x00NUL\x00"),
    ("application/octet-stream", b"\xff\xfe\x80 not UTF-8 \xc3"),
    ("application/octet-stream", bytes(range(256)) * 4),
    ("text/plain; charset=utf-8", b"no JSON\n\n...\r\n"),
    ("application/json", b"[" + b'"0123456789abcdef",' * 3000 + b"0]"),
)
AWKWARD_IDS = ("asset:{}:v1", 'asset/{}"\\\n', "asset {} 💾", "{}.ünï:cödé")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEvent:
    """One transaction of the application: a business row and its event."""

    asset: str
    """Key of the business row."""
    event_id: str
    event_type: str
    content_type: str
    body: bytes
    destinations: tuple[str, ...]
    """Who must get it."""
    is_named: bool
    """The call names them; otherwise they are the subscribers."""
    delay_seconds: float | None
    """deliver_at, as a distance from the moment of the call."""
    ends: End
    is_readmitted: bool
    """After its commit it is admitted a second time."""


def plan_events(count: int, targets: Sequence[Target], seed: int) -> Iterator[PlannedEvent]:
    """`count` events that commit, and among them ROLLED_BACK_SHARE as many that do not."""
    chance = random.Random(seed)  # noqa: S311 (a plan, which must be the same under the same seed)
    subscribed = tuple(subscribers(targets))
    names = [target.destination_id for target in targets]
    shares = [target.share for target in targets]
    healthy = [target.destination_id for target in targets if target.is_healthy]
    hanging_left = HANGING_MAX
    committed = number = 0
    while committed < count:
        number += 1
        content_type, body = _body(number, chance)
        (first,) = chance.choices(names, shares)
        # However small the demo: one event for each destination comes first, and commits.
        is_opening = number <= len(names)
        if is_opening:
            first = names[number - 1]
        if first == "hanging":
            hanging_left -= 1
            if hanging_left < 0:
                first = healthy[0]
        is_named = is_opening or chance.random() >= SUBSCRIBED_SHARE
        destinations: tuple[str, ...] = (first,)
        if chance.random() < FAN_OUT_SHARE:
            destinations = tuple({first: None, chance.choice(healthy): None})
        is_scheduled = chance.random() < SCHEDULED_SHARE
        ends: End = "commit"
        if not is_opening and chance.random() < ROLLED_BACK_SHARE / (1 + ROLLED_BACK_SHARE):
            ends = chance.choice(("rollback", "failure", "disconnect"))
        else:
            committed += 1
        yield PlannedEvent(
            asset=str(number),
            event_id=_event_id(number),
            event_type=PROCESSED if is_named else ARCHIVED,
            content_type=content_type,
            body=body,
            destinations=destinations if is_named else subscribed,
            is_named=is_named,
            delay_seconds=round(chance.uniform(1.0, DELAY_SECONDS_MAX), 3) if is_scheduled else None,
            ends=ends,
            is_readmitted=ends == "commit" and chance.random() < READMITTED_SHARE,
        )


def _event_id(number: int) -> str:
    form = AWKWARD_IDS[number // AWKWARD_EVERY % len(AWKWARD_IDS)] if number % AWKWARD_EVERY == 0 else AWKWARD_IDS[0]
    return form.format(number)


def _body(number: int, chance: random.Random) -> tuple[str, bytes]:
    if number % AWKWARD_EVERY == 0:
        return AWKWARD_BODIES[number // AWKWARD_EVERY % len(AWKWARD_BODIES)]
    words = chance.choices(("clip", "still", "stream", "subtitle", "preview", "master"), k=chance.randint(10, 40))
    content = {"asset": number, "state": "processed", "renditions": words}
    return "application/json", json.dumps(content, indent=chance.choice((None, 2))).encode()
