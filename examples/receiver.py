"""A receiver for the examples: verifies, remembers ids, and does what a story asks of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from pipeline.demo.signatures import Verifier


@dataclass(frozen=True, slots=True)
class Request:
    """One request that was verified."""

    destination_id: str
    webhook_id: str
    body: bytes
    attempt: int
    signatures: str
    is_effect: bool
    """Whether it was applied; a repeat of an id never is."""
    at: float
    """time.monotonic()"""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    applies: bool = True
    """Whether the receiver has done its work when it answers so."""


class Receiver:
    """Serves ``/<destination id>``. ``answer`` decides on each request, and may block; without one all is well."""

    def __init__(self) -> None:
        self.answer: Callable[[str, int], Answer] = lambda destination_id, repeat: Answer()
        self.after: Callable[[str], None] = lambda destination_id: None
        """Called when a request has been applied, before its answer leaves."""
        self._verifiers: dict[str, Verifier] = {}
        self._requests: list[Request] = []
        self._refused = 0
        self._applied: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, destination_id: str) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{quote(destination_id, safe='')}"

    def trust(self, destination_id: str, *secrets: str) -> None:
        """Take requests for a destination that are signed with one of these."""
        self._verifiers[destination_id] = Verifier(secrets)

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    @property
    def refused(self) -> int:
        """Requests with a signature that does not fit."""
        return self._refused

    def effects(self) -> list[Request]:
        return [request for request in self.requests if request.is_effect]

    def of(self, webhook_id: str) -> list[Request]:
        return [request for request in self.requests if request.webhook_id == webhook_id]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, destination_id: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Verify, decide, apply, record."""
        verifier = self._verifiers.get(destination_id)
        if verifier is None or verifier.verify(body, headers) == "invalid":
            self._refused += 1
            return Answer(401)
        webhook_id = headers["webhook-id"]
        key = destination_id, webhook_id
        with self._lock:
            repeat = sum(request.webhook_id == webhook_id for request in self._requests)
        answer = self.answer(destination_id, repeat)
        with self._lock:
            is_effect = answer.applies and key not in self._applied
            if is_effect:
                self._applied.add(key)
            self._requests.append(
                Request(
                    destination_id=destination_id,
                    webhook_id=webhook_id,
                    body=body,
                    attempt=int(headers.get("outrider-attempt", "0")),
                    signatures=headers["webhook-signature"],
                    is_effect=is_effect,
                    at=time.monotonic(),
                )
            )
        self.after(destination_id)
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed leaves broken connections; that is no news."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(unquote(self.path.removeprefix("/")), headers, body)
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Requests are on record already."""

    return Handler
