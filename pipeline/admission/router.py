"""Paths to handlers. Pure.

The table is small and known, so a dictionary finds most of it: aiohttp's Application looks up, wraps and signals for more
than half of the time that admitting an event takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from aiohttp import web

from pipeline.admission.problems import Kind, Refusal

PATH_VALUES = web.RequestKey("path_values", dict[str, str])
"""What the varying segments of the path hold, unquoted."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """With ``{name}`` for a segment that varies; the handler finds it in ``request[PATH_VALUES]``."""
    handler: Handler


class Router:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._plain: dict[str, dict[str, Handler]] = {}
        self._varying: dict[tuple[str, ...], dict[str, Handler]] = {}
        for route in routes:
            segments = tuple(route.path.split("/"))
            known = (
                self._varying.setdefault(segments, {}) if "{" in route.path else self._plain.setdefault(route.path, {})
            )
            known[route.method] = route.handler

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with the handler, or with a problem where there is none."""
        path = request.rel_url.raw_path
        handlers = self._plain.get(path) or self._find(request, path.split("/"))
        if handlers is None:
            return Refusal(Kind.NOT_FOUND, "there is no such path", field="path", mend="see /openapi.json").response()
        handler = handlers.get(request.method)
        if handler is None:
            allow = ", ".join(sorted(handlers))
            return Refusal(
                Kind.METHOD, f"the path does not take {request.method[:20]}", mend=f"it takes {allow}", allow=allow
            ).response()
        return await handler(request)

    def _find(self, request: web.BaseRequest, segments: list[str]) -> dict[str, Handler] | None:
        for pattern, handlers in self._varying.items():
            if len(pattern) != len(segments):
                continue
            names = {}
            for wanted, given in zip(pattern, segments, strict=True):
                if wanted.startswith("{"):
                    if not given:
                        break
                    names[wanted[1:-1]] = _unquoted(given)
                elif wanted != given:
                    break
            else:
                request[PATH_VALUES] = names
                return handlers
        return None


def _unquoted(segment: str) -> str:
    """Bytes that are no UTF-8 become surrogates, which no name of ours has."""
    return unquote_to_bytes(segment).decode(errors="surrogateescape")
