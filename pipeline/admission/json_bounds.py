"""How deep a JSON text nests, counted before anything recursive reads it."""

from __future__ import annotations

import re
from array import array
from itertools import accumulate

DEPTH_MAX = 64

# A string that nobody closed runs to the end. The quantifiers give nothing back, so the time is linear in the text.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_OPENING, _CLOSING = b"[{", b"]}"
_STEPS = bytes.maketrans(_OPENING + _CLOSING, b"\x01\x01\xff\xff")
_OTHERS = bytes(byte for byte in range(256) if byte not in _OPENING + _CLOSING)


def depth(text: bytes) -> int:
    """Greatest number of arrays and objects that are open at once; also of a text that is no JSON."""
    opened = text.count(b"[") + text.count(b"{")
    # Most bodies: none, or one that begins the text, so that it is in no string.
    if opened == 0 or (opened == 1 and text.lstrip()[:1] in (b"[", b"{")):
        return opened
    steps = array("b", _STRING.sub(b"", text).translate(_STEPS, _OTHERS))
    return max(accumulate(steps, initial=0))
