"""Answers as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

_encoder = msgspec.json.Encoder()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A struct as ``application/json``."""
    return web.Response(
        status=status, body=_encoder.encode(value), headers={**(headers or {}), "Content-Type": "application/json"}
    )
