"""The CSV of kafka-consumer-groups, read and written: `topic,partition,offset`, or `group,topic,partition,offset`.

Its --export writes the first form for one group and the second for several; its --from-file reads both.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping

from pipeline.offsets.errors import OffsetsError
from pipeline.offsets.places import Place
from pipeline.offsets.targets import OFFSET_MAX

ROWS_MAX = 1_000_000
PARTITION_MAX = 2**31 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def write_csv(groups: Mapping[str, Mapping[Place, int]]) -> str:
    """Lines in the order of topics and partitions, without a header. One group: no group column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, offsets in groups.items():
        for (topic, partition), offset in sorted(offsets.items()):
            writer.writerow(
                (topic, partition, offset) if len(groups) == 1 else (group, topic, partition, offset),
            )
    return text.getvalue()


def read_csv(text: str, group: str) -> dict[Place, int]:
    """The offsets of `group`: all lines of the form without groups, its own lines of the other.

    Raises OffsetsError that names the line.
    """
    found: dict[Place, int] = {}
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text), strict=True), start=1):
            if number > ROWS_MAX:
                raise OffsetsError(f"more than {ROWS_MAX} lines")
            if not row:
                continue
            if len(row) not in (3, 4):
                raise OffsetsError(f"line {number}: expected topic,partition,offset, or group,topic,partition,offset")
            *named, topic, partition, offset = (field.strip() for field in row)
            place = Place(_topic(topic, number), _number(partition, "partition", PARTITION_MAX, number))
            value = _number(offset, "offset", OFFSET_MAX, number)
            if named and named != [group]:
                continue
            if place in found:
                raise OffsetsError(f"line {number}: {place} again")
            found[place] = value
    except csv.Error as error:
        raise OffsetsError(f"not CSV: {error}") from None
    if not found:
        raise OffsetsError(f"no line for group {group}")
    return found


def _topic(text: str, line: int) -> str:
    if not _TOPIC.fullmatch(text):
        raise OffsetsError(f"line {line}: {text!r} is no topic's name")
    return text


def _number(text: str, what: str, largest: int, line: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > largest:
        raise OffsetsError(f"line {line}: {what} {text!r} is no number from 0 to {largest}")
    return int(text)
