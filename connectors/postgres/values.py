"""Column values as text or JSON, the same bytes whether PostgreSQL sent the text or the binary form.

The canonical text of a value is what a header or a key carries: numbers in decimal, ``true`` and
``false``, UUIDs in lower case, ``bytea`` as base64, JSON as it is stored, arrays as JSON arrays, dates
and times as ISO 8601 (``timestamptz`` in UTC with six digits and ``Z``; years outside 0001 to 9999 in the
expanded form ``+294276-…``; ``infinity`` and ``-infinity`` by name). As JSON, that text stands unquoted
where it is a JSON number, boolean, array or document, else as a string. ``numeric`` becomes a string
too: readers that parse JSON numbers as doubles would lose digits without a sign.
"""

from __future__ import annotations

import base64
import struct
from binascii import hexlify
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate, repeat
from math import isinf, isnan
from typing import Final, Literal

import msgspec

Quoting = Literal["quoted", "raw", "number"]


class ValueFormError(ValueError):
    """The bytes or text are no value of the type that the relation names."""


class BinaryUnsupportedError(Exception):
    """The binary form of this type is not known here; the text form of every type is."""


# What from_binary and from_text raise for malformed input.
VALUE_ERRORS: Final = (ValueError, IndexError, OverflowError, struct.error)


@dataclass(frozen=True, slots=True)
class Codec:
    """How one type becomes canonical text.

    ``quoting`` says how that text stands in JSON: in quotes, as it is, or as it is where it is a finite
    number and in quotes otherwise (NaN, Infinity).
    """

    from_binary: Callable[[bytes], bytes]
    from_text: Callable[[str], bytes]
    quoting: Quoting = "quoted"
    # The raw bytes of a value that is published as a whole record value.
    body_from_binary: Callable[[bytes], bytes] | None = field(default=None)
    body_from_text: Callable[[str], bytes] | None = field(default=None)

    @property
    def is_textual(self) -> bool:
        """Whether the binary form is the text itself."""
        return self.from_binary is _same

    @property
    def is_raw(self) -> bool:
        """Whether a value is bytes of any kind, and its text only tells of them."""
        return self.body_from_binary is not None

    def text(self, value: bytes | str) -> bytes:
        """Canonical text in UTF-8. Raises ValueFormError or BinaryUnsupportedError."""
        return self._apply(value, self.from_binary, self.from_text)

    def body(self, value: bytes | str) -> bytes:
        """The value as a record's value: ``bytea`` unchanged, every other type as its canonical text."""
        return self._apply(value, self.body_from_binary or self.from_binary, self.body_from_text or self.from_text)

    def json(self, value: bytes | str) -> bytes:
        """The value as a fragment of JSON."""
        return self._quoted(self.text(value))

    @property
    def json_from_binary(self) -> Callable[[bytes], bytes]:
        """Like json, for binary forms only. Raises one of VALUE_ERRORS or BinaryUnsupportedError."""
        from_binary, quoted = self.from_binary, self._quoted
        return from_binary if self.quoting == "raw" else lambda value: quoted(from_binary(value))

    def _quoted(self, text: bytes) -> bytes:
        if self.quoting == "raw" or (self.quoting == "number" and text[-1:].isdigit()):
            return text
        return msgspec.json.encode(text.decode())

    @staticmethod
    def _apply(value: bytes | str, from_binary: Callable[[bytes], bytes], from_text: Callable[[str], bytes]) -> bytes:
        try:
            return from_binary(value) if isinstance(value, bytes) else from_text(value)
        except VALUE_ERRORS as error:
            raise ValueFormError(str(error)) from None


def codec_of(type_oid: int) -> Codec:
    """The codec of a type. Types that are not known here are text, and only in the text form."""
    return _CODECS.get(type_oid, _UNKNOWN)


def _same(value: bytes) -> bytes:
    return value


def _refuse_binary(_: bytes) -> bytes:
    raise BinaryUnsupportedError


def _exactly(size: int, value: bytes) -> bytes:
    if len(value) != size:
        raise ValueFormError(f"needs {size} bytes, got {len(value)}")
    return value


# --- numbers and booleans -----------------------------------------------------------------


def _integer(form: str) -> Callable[[bytes], bytes]:
    """``form`` is struct's, and refuses values of another size."""
    unpack: Callable[[bytes], tuple[int]] = struct.Struct(f">{form}").unpack
    return lambda value: b"%d" % unpack(value)


def _oid_from_binary(value: bytes) -> bytes:
    return b"%d" % int.from_bytes(_exactly(4, value), "big")


def _boolean_from_binary(value: bytes) -> bytes:
    return b"true" if _exactly(1, value) != b"\0" else b"false"


def _boolean_from_text(value: str) -> bytes:
    return b"true" if value == "t" else b"false"


def _float_text(number: float) -> bytes:
    if isnan(number):
        return b"NaN"
    if isinf(number):
        return b"Infinity" if number > 0 else b"-Infinity"
    return repr(number).encode()


def _double_from_binary(value: bytes) -> bytes:
    return _float_text(struct.unpack(">d", value)[0])


def _single_from_binary(value: bytes) -> bytes:
    (number,) = struct.unpack(">f", value)
    # The shortest decimal that reads back as the same single-precision number.
    for digits in range(1, 10):
        short = float(f"{number:.{digits}g}")
        try:
            if struct.pack(">f", short) == value:
                return _float_text(short)
        except OverflowError:  # rounded up past the largest number
            continue
    return _float_text(number)


def _float_from_text(value: str) -> bytes:
    return _float_text(float(value))


_NUMERIC_SPECIAL = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}


def _numeric_from_binary(value: bytes) -> bytes:
    """Base-10000 digits: the first has the weight 10000^weight; ``scale`` decimals are shown."""
    count, weight, sign, scale = struct.unpack_from(">HhHH", value)
    digits = struct.unpack(f">{count}H", value[8:])
    if sign in _NUMERIC_SPECIAL:
        return _NUMERIC_SPECIAL[sign]
    if sign not in (0, 0x4000):
        raise ValueFormError(f"unknown sign {sign:#x} of a numeric")

    def group(index: int) -> str:
        return f"{digits[index]:04d}" if 0 <= index < count else "0000"

    whole = "".join(group(index) for index in range(weight + 1)).lstrip("0") or "0"
    decimals = "".join(group(weight + 1 + index) for index in range((scale + 3) // 4))[:scale]
    text = f"{'-' if sign else ''}{whole}{'.' if scale else ''}{decimals}"
    return text.encode()


# --- uuid, bytea, json --------------------------------------------------------------------


_UUID_GROUPS = struct.Struct("8s4s4s4s12s").unpack


def _uuid_from_binary(value: bytes) -> bytes:
    try:
        return b"-".join(_UUID_GROUPS(hexlify(value)))
    except struct.error:
        raise ValueFormError(f"needs 16 bytes, got {len(value)}") from None


def _bytea_body_from_text(value: str) -> bytes:
    if not value.startswith("\\x"):
        raise ValueFormError("bytea in text form is read only as hex; set bytea_output = 'hex'")
    return bytes.fromhex(value[2:])


def _bytea_from_text(value: str) -> bytes:
    return base64.b64encode(_bytea_body_from_text(value))


def _jsonb_from_binary(value: bytes) -> bytes:
    if value[:1] != b"\x01":
        raise ValueFormError(f"unknown version of jsonb: {value[:1]!r}")
    return value[1:]


# --- dates and times ----------------------------------------------------------------------

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_DAYS_CIVIL = 730_425  # days from 0000-03-01 to 2000-01-01
_DAY_US = 86_400_000_000
_FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) + _DAY_US - 1
_INFINITE = {"infinity": b"infinity", "-infinity": b"-infinity"}


def _civil_date(days: int) -> str:
    """The proleptic Gregorian date ``days`` after 2000-01-01, for years that datetime cannot hold."""
    era, day_of_era = divmod(days + _EPOCH_DAYS_CIVIL, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{_year(year)}-{month:02d}-{day:02d}"


def _year(year: int) -> str:
    """Astronomical years: 1 BC is year 0. Four digits, or signed where they do not do."""
    return f"{year:04d}" if 1 <= year <= 9999 else f"{year:+05d}"


def _timestamp(suffix: str) -> Callable[[bytes], bytes]:
    def from_binary(value: bytes) -> bytes:
        moment_us = int.from_bytes(_exactly(8, value), "big", signed=True)
        if _FIRST_US <= moment_us <= _LAST_US:
            text = (_EPOCH + timedelta(microseconds=moment_us)).isoformat(timespec="microseconds")
            return f"{text.removesuffix('+00:00')}{suffix}".encode()
        if moment_us in (-(1 << 63), (1 << 63) - 1):
            return b"infinity" if moment_us > 0 else b"-infinity"
        days, rest_us = divmod(moment_us, _DAY_US)
        seconds, micros = divmod(rest_us, 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros:06d}"
        return f"{_civil_date(days)}T{clock}{suffix}".encode()

    return from_binary


def _timestamp_from_text(suffix: str) -> Callable[[str], bytes]:
    def from_text(value: str) -> bytes:
        if value in _INFINITE:
            return _INFINITE[value]
        date, clock = value.removesuffix(" BC").split(" ")
        if suffix:
            if not clock.endswith("+00"):
                raise ValueFormError(f"timestamptz in text form is read only in UTC, got {value!r}")
            clock = clock[:-3]
        whole, _, fraction = clock.partition(".")
        return f"{_date_text(date, value.endswith(' BC'))}T{whole}.{fraction:0<6}{suffix}".encode()

    return from_text


def _date_text(date: str, before_christ: bool) -> str:
    year, month, day = date.split("-")
    return f"{_year(1 - int(year) if before_christ else int(year))}-{month}-{day}"


def _date_from_binary(value: bytes) -> bytes:
    days = int.from_bytes(_exactly(4, value), "big", signed=True)
    if days in (-(1 << 31), (1 << 31) - 1):
        return b"infinity" if days > 0 else b"-infinity"
    return _civil_date(days).encode()


def _date_from_text(value: str) -> bytes:
    if value in _INFINITE:
        return _INFINITE[value]
    return _date_text(value.removesuffix(" BC"), value.endswith(" BC")).encode()


# --- arrays -------------------------------------------------------------------------------


def _nest(items: list[bytes], dimensions: list[int]) -> bytes:
    """Items in row order as JSON arrays of the given dimensions, the last one innermost."""
    for size in reversed(dimensions):
        items = [b"[" + b",".join(items[at : at + size]) + b"]" for at in range(0, len(items), size)]
    return items[0]


def _array_from_binary(value: bytes) -> bytes:
    dimension_count, _, element_oid = struct.unpack_from(">iiI", value)
    if dimension_count == 0:
        return b"[]"
    if not 0 < dimension_count <= 6:
        raise ValueFormError(f"an array has at most 6 dimensions, got {dimension_count}")
    dimensions = [struct.unpack_from(">ii", value, 12 + 8 * index)[0] for index in range(dimension_count)]
    element = codec_of(element_oid)
    position = 12 + 8 * dimension_count
    items: list[bytes] = []
    while position < len(value):
        (size,) = struct.unpack_from(">i", value, position)
        position += 4
        if size < 0:
            items.append(b"null")
            continue
        if position + size > len(value):
            raise ValueFormError("an array's last element is cut off")
        items.append(element.json(value[position : position + size]))
        position += size
    if len(items) != list(accumulate(dimensions, lambda left, right: left * right))[-1]:
        raise ValueFormError(f"an array of {dimensions} holds {len(items)} elements")
    return _nest(items, dimensions)


def _array_from_text(element_oid: int) -> Callable[[str], bytes]:
    def from_text(value: str) -> bytes:
        # Bounds other than 1 are written in front: [2:3]={a,b}. JSON has no place for them.
        start = value.find("{")
        if start < 0:
            raise ValueFormError("an array in text form begins with {")
        return _parse_array(value, start, codec_of(element_oid))

    return from_text


def _parse_array(value: str, start: int, element: Codec) -> bytes:
    """Array text such as ``{a,"b \\"c\\"",NULL,{d}}`` as JSON; braces nest as dimensions do."""
    out: list[bytes] = []
    position = start
    while position < len(value):
        letter = value[position]
        if letter in "{},":
            out.append({"{": b"[", "}": b"]", ",": b","}[letter])
            position += 1
        elif letter == '"':
            piece, position = _quoted_element(value, position + 1)
            out.append(element.json(piece))
        else:
            end = position
            while value[end] not in ",}":
                end += 1
            piece, position = value[position:end], end
            out.append(b"null" if piece == "NULL" else element.json(piece))
    return b"".join(out)


def _quoted_element(value: str, position: int) -> tuple[str, int]:
    piece: list[str] = []
    while value[position] != '"':
        if value[position] == "\\":
            position += 1
        piece.append(value[position])
        position += 1
    return "".join(piece), position + 1


_TEXTUAL = Codec(_same, str.encode)
_UNKNOWN = Codec(_refuse_binary, str.encode)
_JSONB_OID: Final = 3802

_CODECS: dict[int, Codec] = {
    16: Codec(_boolean_from_binary, _boolean_from_text, "raw"),
    17: Codec(base64.b64encode, _bytea_from_text, "quoted", _same, _bytea_body_from_text),
    20: Codec(_integer("q"), str.encode, "raw"),
    21: Codec(_integer("h"), str.encode, "raw"),
    23: Codec(_integer("i"), str.encode, "raw"),
    26: Codec(_oid_from_binary, str.encode, "raw"),
    114: Codec(_same, str.encode, "raw"),
    700: Codec(_single_from_binary, _float_from_text, "number"),
    701: Codec(_double_from_binary, _float_from_text, "number"),
    1082: Codec(_date_from_binary, _date_from_text),
    1114: Codec(_timestamp(""), _timestamp_from_text("")),
    1184: Codec(_timestamp("Z"), _timestamp_from_text("Z")),
    1700: Codec(_numeric_from_binary, str.encode),
    2950: Codec(_uuid_from_binary, str.encode),
    _JSONB_OID: Codec(_jsonb_from_binary, str.encode, "raw"),
    # "char", name, text, bpchar, varchar
    **dict(zip((18, 19, 25, 1042, 1043), repeat(_TEXTUAL))),
}

_ARRAY_OF = {
    1000: 16, 1001: 17, 1016: 20, 1005: 21, 1007: 23, 1028: 26, 199: 114, 1021: 700, 1022: 701, 1182: 1082,
    1115: 1114, 1185: 1184, 1231: 1700, 2951: 2950, 3807: 3802, 1002: 18, 1003: 19, 1009: 25, 1014: 1042,
    1015: 1043,
}  # fmt: skip
_CODECS.update(
    {array: Codec(_array_from_binary, _array_from_text(element), "raw") for array, element in _ARRAY_OF.items()}
)
