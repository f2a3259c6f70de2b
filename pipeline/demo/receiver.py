"""A webhook receiver that can be told to misbehave: `python -m pipeline.demo.receiver CONFIG.json`.

It serves many destinations, `/hooks/<destination>`, each with its secrets and its behaviour. It verifies every
signature, deduplicates by webhook-id as a good receiver does, and keeps the record in receipts.py. Started again on
the same record it goes on where it was killed.

Tests use `serving` in their own event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import uvloop
from aiohttp import web

from pipeline.demo.behaviours import Arrival, Behaviour
from pipeline.demo.receipts import Receipt, ReceiptFile, ReceiptTail
from pipeline.demo.signatures import Verifier
from pipeline.demo.wire import ASSET_HEADER, HOOKS_PATH, LIVE_PATH

DELIVERIES_MAX = 1_000_000
"""Distinct deliveries that one receiver remembers; beyond it, new ones are answered with 507."""
SHUTDOWN_SECONDS = 1.0

log = logging.getLogger(__name__)


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """One destination: the secrets to verify with, and what to do."""

    secrets: list[str]
    behaviour: Behaviour


class ReceiverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration file. It holds secrets: mode 0600."""

    host: str = "127.0.0.1"
    port: int
    receipts: str
    """Path of the append-only record."""
    hooks: dict[str, Hook]
    """By destination id."""


class Receiver:
    """Turns requests into receipts and answers. Holds one small record per distinct delivery."""

    def __init__(self, hooks: Mapping[str, Hook], receipts: Path) -> None:
        self._hooks = {name: (Verifier(hook.secrets), hook.behaviour) for name, hook in hooks.items()}
        self._path = receipts
        self._seen: dict[tuple[str, str], int] = {}
        self._applied: set[tuple[str, str]] = set()
        self._arrivals = dict.fromkeys(hooks, 0)
        for receipt in ReceiptTail(receipts).read():
            self._remember(receipt)
        self._file = ReceiptFile(receipts)
        self.base_url = ""

    def url(self, destination_id: str) -> str:
        """Address of one destination, once the receiver listens."""
        return f"{self.base_url}{HOOKS_PATH}{quote(destination_id, safe='')}"

    def receipts(self, destination_id: str | None = None) -> list[Receipt]:
        """The record so far, from the file: of one destination, or of all."""
        return [r for r in ReceiptTail(self._path).read() if destination_id in (None, r.destination_id)]

    def close(self) -> None:
        self._file.close()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """One HTTP request."""
        if request.path == LIVE_PATH:
            return web.Response(text="alive\n")
        destination_id = request.path.removeprefix(HOOKS_PATH)
        hook = self._hooks.get(destination_id)
        if hook is None or not request.path.startswith(HOOKS_PATH):
            return web.Response(status=404)
        if request.method != "POST":
            return web.Response(status=405)
        body = await request.read()
        verifier, behaviour = hook
        receipt, answer_headers, delay_seconds = self._take(destination_id, verifier, behaviour, request.headers, body)
        if delay_seconds > 0:
            await asyncio.sleep(delay_seconds)
        if receipt.status is None:
            if request.transport is not None:
                request.transport.abort()
            # Nobody hears it any more: the connection is closed.
            return web.Response(status=500)
        return web.Response(status=receipt.status, headers=answer_headers)

    def _take(
        self, destination_id: str, verifier: Verifier, behaviour: Behaviour, headers: Mapping[str, str], body: bytes
    ) -> tuple[Receipt, dict[str, str], float]:
        """Verify, decide and record; no await in between, so the record is in order and complete."""
        received_at = time.time()
        webhook_id = headers.get("webhook-id", "")
        signature = verifier.verify(body, headers)
        status: int | None = 401
        applies, delay_seconds, answer_headers = False, 0.0, {}
        key = destination_id, webhook_id
        if signature != "invalid" and key not in self._seen and len(self._seen) >= DELIVERIES_MAX:
            status = 507
        elif signature != "invalid":
            answer = behaviour.answer(
                Arrival(webhook_id, self._seen.get(key, 0) + 1, self._arrivals[destination_id] + 1)
            )
            status, applies = answer.status, answer.applies
            delay_seconds, answer_headers = answer.delay_seconds, answer.headers
        receipt = Receipt(
            destination_id=destination_id,
            webhook_id=webhook_id,
            received_at=received_at,
            body_sha256=hashlib.sha256(body).hexdigest(),
            signature=signature,
            idempotency_key_fits=headers.get("idempotency-key") == webhook_id,
            asset=headers.get(ASSET_HEADER),
            applies=applies,
            is_effect=applies and key not in self._applied,
            status=status,
        )
        self._file.append(receipt)
        self._remember(receipt)
        return receipt, answer_headers, delay_seconds

    def _remember(self, receipt: Receipt) -> None:
        if receipt.signature == "invalid" or receipt.status == 507:
            return
        key = receipt.destination_id, receipt.webhook_id
        self._arrivals[receipt.destination_id] = self._arrivals.get(receipt.destination_id, 0) + 1
        self._seen[key] = self._seen.get(key, 0) + 1
        if receipt.applies:
            self._applied.add(key)


@asynccontextmanager
async def serving(
    hooks: Mapping[str, Hook], receipts: Path, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Receiver]:
    """Listen while the block runs; port 0 takes a free one. Raises OSError where the port is taken."""
    receiver = Receiver(hooks, receipts)
    # A sender that has given up leaves no handler behind. A body above aiohttp's 1 MiB is answered with 413.
    server = web.Server(receiver.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        receiver.base_url = f"http://{host}:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()
        receiver.close()


async def serve(config: ReceiverConfig) -> None:
    """Listen until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(config.hooks, Path(config.receipts), host=config.host, port=config.port):
        await stop.wait()


def main(arguments: Sequence[str]) -> int:
    """0 after a signal, 1 where the port is taken, 2 for a wrong call or file."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    if len(arguments) != 1:
        log.error("usage: python -m pipeline.demo.receiver CONFIG.json")
        return 2
    try:
        config = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ReceiverConfig)
    except (OSError, msgspec.DecodeError) as error:
        log.error("%s: %s", arguments[0], error)
        return 2
    try:
        uvloop.run(serve(config))
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", config.host, config.port, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
