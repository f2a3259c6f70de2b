"""One HTTP/1.1 answer out of bytes as they come: no I/O, and bounded whatever the bytes are.

Why not a library: a general client reads all that is sent before it looks at what it means. Of a flood of interim
answers one read may hold thousands, and the whole worker waits while they are parsed. This parser stops at its
bounds inside a read, keeps no more than the bounds, and decides the one thing that matters apart from the status:
whether the connection is clean afterwards and may carry another request.

Lenient where it does no harm (bare line feeds, bytes outside ASCII in values), and then the connection is not used
again; strict where the meaning would be a guess (status line, header names, lengths).
"""

from __future__ import annotations

import re
from enum import Enum, auto

HEAD_BYTES_MAX = 32 * 1024
"""Header bytes of all interim answers and of the final one together."""
HEADERS_MAX = 128
INTERIM_MAX = 8
EXCERPT_BYTES_MAX = 4096
READ_BYTES_MAX = 64 * 1024
"""Bytes after the header that are read in all, framing included; after them the answer counts as heard."""
CHUNK_LINE_BYTES_MAX = 1024

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?", re.DOTALL)
_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_BODYLESS = frozenset((101, 204, 304))


class InvalidAnswerError(Exception):
    """The bytes are no answer in HTTP/1.1, or none within the bounds."""


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class AnswerParser:
    """Feed it until ``is_done``; ``status`` and ``headers`` are there as soon as the final header has ended.

    What comes after the final header can no longer fail: a broken body ends the answer, and only ``is_clean`` tells.
    """

    __slots__ = (
        "_body_left",
        "_buffer",
        "_head_bytes_left",
        "_interim",
        "_read_left",
        "_state",
        "excerpt",
        "headers",
        "is_clean",
        "status",
    )

    def __init__(self) -> None:
        self._state = _State.HEAD
        self._buffer = b""
        self._head_bytes_left = HEAD_BYTES_MAX
        self._interim = 0
        self._body_left = 0
        self._read_left = READ_BYTES_MAX
        self.status: int | None = None
        self.headers: list[tuple[str, str]] = []
        """Names in lower case, in the order of the answer; values as Latin-1, which every byte has a place in."""
        self.excerpt = b""
        """The body's first bytes, without the framing of chunks, as they were sent: nothing is decompressed."""
        self.is_clean = False
        """Whether the answer ended where it said it would, and left the connection open for another request."""

    @property
    def is_done(self) -> bool:
        """Whether the answer is over, or as much of it was read as ever is."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> None:
        """Raises InvalidAnswerError, only before the final header has ended."""
        # A header that comes byte by byte is not searched from its beginning each time.
        searched = max(0, len(self._buffer) - 3)
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        while self._state is _State.HEAD:
            end = _HEAD_END.search(data, searched, self._head_bytes_left)
            searched = 0
            if end is None:
                self._await_head(data)
                return
            head, data = data[: end.start()], data[end.end() :]
            self._head_bytes_left -= end.end()
            self._take_head(head)
        if self._state is not _State.DONE:
            self._take_body(data)
        elif data:
            self.is_clean = False  # nobody has asked for it

    def feed_end(self) -> None:
        """The connection has ended. Raises InvalidAnswerError where no final header has come but other bytes have."""
        if self._state is _State.HEAD and self._buffer:
            raise InvalidAnswerError("the connection ended within the header of the answer")
        self.is_clean = False
        self._state = _State.DONE

    # The header

    def _await_head(self, data: bytes) -> None:
        if len(data) >= self._head_bytes_left:
            raise InvalidAnswerError(f"a header of more than {HEAD_BYTES_MAX} bytes")
        if not data.startswith(b"HTTP/"[: len(data)]):
            raise InvalidAnswerError(f"no HTTP answer: it begins with {_shown(data)}")
        self._buffer = data

    def _take_head(self, head: bytes) -> None:
        lines = head.split(b"\n")
        line = _STATUS_LINE.fullmatch(lines[0].removesuffix(b"\r"))
        if line is None:
            raise InvalidAnswerError(f"no status line of HTTP/1.1: {_shown(lines[0])}")
        status = int(line[2])
        if status < 200 and status != 101:
            self._interim += 1
            if self._interim > INTERIM_MAX:
                raise InvalidAnswerError(f"more than {INTERIM_MAX} interim answers")
            return
        if len(lines) - 1 > HEADERS_MAX:
            raise InvalidAnswerError(f"more than {HEADERS_MAX} headers")
        headers = [_header(line) for line in lines[1:]]
        framing = _Framing(headers, is_http_1_1=line[1] == b"1")
        self.status, self.headers = status, headers
        self.is_clean = framing.keeps_alive and head.count(b"\r\n") == len(lines) - 1
        if status in _BODYLESS or framing.length == 0:
            self._state = _State.DONE
            self.is_clean = self.is_clean and status != 101
        elif framing.is_chunked:
            self._state = _State.CHUNK_SIZE
        elif framing.length is not None:
            self._state, self._body_left = _State.LENGTH, framing.length
        else:
            self._state = _State.UNTIL_CLOSE

    # The body

    def _take_body(self, data: bytes) -> None:
        place = 0
        while self._state is not _State.DONE and place < len(data):
            before = place
            if self._state in (_State.LENGTH, _State.CHUNK_DATA):
                place = self._take_counted(data, place)
            elif self._state is _State.UNTIL_CLOSE:
                self._keep(data, place, len(data))
                place = len(data)
            else:
                end = data.find(b"\n", place)
                if end < 0:
                    self._await_line(data, place)
                    return
                place = end + 1
                self._take_line(data[before:end])
            self._read_left -= place - before
            if self._read_left <= 0:
                self._give_up()
        if place < len(data):
            self.is_clean = False

    def _take_counted(self, data: bytes, place: int) -> int:
        end = min(place + self._body_left, len(data))
        self._keep(data, place, end)
        self._body_left -= end - place
        if self._body_left == 0:
            self._state = _State.DONE if self._state is _State.LENGTH else _State.CHUNK_END
        return end

    def _await_line(self, data: bytes, place: int) -> None:
        if len(data) - place > CHUNK_LINE_BYTES_MAX:
            self._give_up()
        else:
            self._buffer = data[place:]

    def _take_line(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if self._state is _State.CHUNK_SIZE:
            size = _CHUNK_SIZE.fullmatch(line) if len(line) <= CHUNK_LINE_BYTES_MAX else None
            if size is None:
                self._give_up()
                return
            self._body_left = int(size[1], 16)
            self._state = _State.CHUNK_DATA if self._body_left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            self._state = _State.CHUNK_SIZE
            if line:
                self._give_up()
        elif not line:  # of the trailers, only their end is of interest
            self._state = _State.DONE

    def _keep(self, data: bytes, place: int, end: int) -> None:
        missing = EXCERPT_BYTES_MAX - len(self.excerpt)
        if missing > 0:
            self.excerpt += data[place : min(end, place + missing)]

    def _give_up(self) -> None:
        """The status stands; the rest of the answer is of no use."""
        self.is_clean = False
        self._state = _State.DONE


class _Framing:
    """What the header says about the end of the body and of the connection (RFC 9112, 6.3 and 9.3)."""

    __slots__ = ("is_chunked", "keeps_alive", "length")

    def __init__(self, headers: list[tuple[str, str]], *, is_http_1_1: bool) -> None:
        lengths = [value for name, value in headers if name == "content-length"]
        codings = [value for name, value in headers if name == "transfer-encoding"]
        options = ",".join(value for name, value in headers if name == "connection").lower()
        self.is_chunked = bool(codings) and codings[-1].lower().rpartition(",")[2].strip() == "chunked"
        self.length: int | None = None
        if lengths and not codings:
            if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0].encode("latin-1")):
                raise InvalidAnswerError(f"no content-length that can be read: {_shown(lengths[0].encode('latin-1'))}")
            self.length = int(lengths[0])
        # Both a length and a coding, or a version that knows no coding: two readers could disagree about the end.
        is_doubtful = bool(codings) and (bool(lengths) or not is_http_1_1)
        self.keeps_alive = is_http_1_1 and not is_doubtful and "close" not in [o.strip() for o in options.split(",")]


def _header(line: bytes) -> tuple[str, str]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name):
        raise InvalidAnswerError(f"no header line: {_shown(line)}")
    return name.decode().lower(), value.strip(b" \t\r").decode("latin-1")


def _shown(data: bytes) -> str:
    return ascii(data[:60])[1:]
