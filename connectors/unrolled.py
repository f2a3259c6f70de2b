"""One table's rows from the wire to what Kafka takes, by one function written out for that table. Pure.

The general way reads a row in two loops, one over its columns (:mod:`connectors.postgres.pgoutput`) and one over its
headers (:mod:`connectors.router`). Both together are most of what a row costs. A function without loops, which
slices only the columns that the route reads, takes less than half of that.

Its source is made here from column numbers alone: names and types stay constants beside it, so that no text of a
configuration or of a database becomes part of a program. It knows the usual case only, binary values and NULLs in a
whole message. For anything else it gives None or raises one of UNUSUAL; the general way then decides about the same
bytes, and its answer counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final, TypeAlias

import msgspec

from connectors.postgres.framing import XLOG_HEADER_BYTES
from connectors.postgres.pgoutput import Relation
from connectors.postgres.values import VALUE_ERRORS, BinaryUnsupportedError, Codec, codec_of
from connectors.route import ColumnValue, Header, Route
from connectors.router import HeaderPair

Parts: TypeAlias = tuple[bytes | None, bytes, list[HeaderPair]]
"""Value, key and headers of a record."""

RowReader: TypeAlias = Callable[[bytes], Parts | None]
"""Takes a whole XLogData message with its header."""

UNUSUAL: Final = (*VALUE_ERRORS, BinaryUnsupportedError)

_INSERT_HEAD = struct.Struct(">cIcH")
_LENGTH = struct.Struct(">I").unpack_from


def unrolled_reader(route: Route, relation: Relation) -> RowReader | None:
    """A reader of the relation's inserted rows, or None where a column of the route is missing, or the route does
    more than is usual."""
    if not isinstance(route.topic, str) or route.timestamp is not None or _tells_blanks(route):
        return None
    places = {column.name: number for number, column in enumerate(relation.columns)}
    if not places.keys() >= set(route.columns):
        return None
    source = _Source(route, relation, places)
    namespace = source.constants
    exec("\n".join(source.lines()), namespace)  # noqa: S102  # see the module: column numbers and nothing else
    reader: RowReader = namespace["read"]  # type: ignore[assignment]  # the source defines it
    return reader


def _tells_blanks(route: Route) -> bool:
    return isinstance(route.value, ColumnValue) and route.value.empty == "blank_text_null"


class _Source:
    """The text of one reader, and the constants that it refers to."""

    def __init__(self, route: Route, relation: Relation, places: dict[str, int]) -> None:
        self._route = route
        self._places = places
        self._codecs = [codec_of(column.type_oid) for column in relation.columns]
        self._wanted = {places[name] for name in route.record_columns}
        head = _INSERT_HEAD.pack(b"I", relation.oid, b"N", len(self._codecs))
        self._start = XLOG_HEADER_BYTES
        self._end = XLOG_HEADER_BYTES + len(head)
        self.constants: dict[str, object] = {"head": head, "length": _LENGTH}

    def lines(self) -> Iterator[str]:
        yield "def read(data):"
        yield f"  if data[{self._start}:{self._end}] != head: return None"
        yield f"  end = {self._end}"
        yield "  nulls = False"
        for number in range(len(self._codecs)):
            yield from self._column(number)
        yield "  if end != len(data): return None"
        key = self._places[self._route.key]
        yield f"  if v{key} is None: return None"
        yield from self._headers()
        yield f"  return {self._value()}, {self._text(key)}, headers"

    def _column(self, number: int) -> Iterator[str]:
        """A kind that is neither binary nor NULL ends the reading."""
        wanted = number in self._wanted
        yield f"  if data[end] == {ord('b')}:"
        yield "    start = end + 5"
        yield "    end = start + length(data, end + 1)[0]"
        if wanted:
            yield f"    v{number} = data[start:end]"
        yield f"  elif data[end] == {ord('n')}:"
        yield "    end += 1"
        if wanted:
            yield f"    v{number} = None"
            yield "    nulls = True"
        yield "  else: return None"

    def _headers(self) -> Iterator[str]:
        """In a row without NULLs those that always stand are one display, which costs half of appending each."""
        headers = list(enumerate(self._route.headers))
        always = list(takewhile(lambda each: each[1].leave_out is None, headers))
        for place, header in headers:
            self.constants[f"name{place}"] = header.name
            if header.leave_out is not None:
                self.constants[f"absent{place}"] = header.leave_out.encode()
        yield "  if nulls:"
        yield "    headers = []"
        for place, header in headers:
            number = self._places[header.column]
            if header.null == "keep":
                yield f"    if v{number} is None: headers.append((name{place}, None))"
            yield f"    if v{number} is not None:"
            yield from (f"      {line}" for line in self._append(place, header))
        yield "  else:"
        pairs = (f"(name{place}, {self._text(self._places[header.column])})" for place, header in always)
        yield f"    headers = [{', '.join(pairs)}]"
        for place, header in headers[len(always) :]:
            yield from (f"    {line}" for line in self._append(place, header))

    def _append(self, place: int, header: Header) -> Iterator[str]:
        """Of a header whose column is not NULL."""
        text = self._text(self._places[header.column])
        if header.leave_out is None:
            yield f"headers.append((name{place}, {text}))"
        else:
            yield f"text = {text}"
            yield f"if text != absent{place}: headers.append((name{place}, text))"

    def _value(self) -> str:
        value = self._route.value
        if isinstance(value, ColumnValue):
            number = self._places[value.column]
            convert = self._codecs[number].body_from_binary or self._codecs[number].from_binary
            self.constants["body"] = convert
            content = f"(None if v{number} is None else body(v{number}))"
            return f"({content} or None)" if value.empty == "null" else content
        members = []
        for place, name in enumerate(value.columns):
            number = self._places[name]
            self.constants[f"member{place}"] = (b"," if place else b"{") + msgspec.json.encode(name) + b":"
            self.constants[f"json{number}"] = self._codecs[number].json_from_binary
            members.append(f"member{place}, b'null' if v{number} is None else json{number}(v{number})")
        self.constants["join"] = b"".join
        return f"join(({', '.join(members)}, b'}}'))"

    def _text(self, number: int) -> str:
        codec: Codec = self._codecs[number]
        if codec.is_textual:
            return f"v{number}"
        self.constants[f"text{number}"] = codec.from_binary
        return f"text{number}(v{number})"
