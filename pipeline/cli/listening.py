"""What the components that listen have in common: their signals, and one line where a port is taken."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from pipeline.cli.errors import CommandError


def on_signal(stop: Callable[[], None]) -> None:
    """Call ``stop`` in the running loop on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


@asynccontextmanager
async def listening(name: str, listener: AbstractAsyncContextManager[object]) -> AsyncIterator[None]:
    """Hold the listener open. Raises CommandError with the names of its settings where it cannot listen."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(listener)
        except OSError as error:
            settings = f"OUTRIDER_{name}_HOST, OUTRIDER_{name}_PORT"
            raise CommandError(f"{settings}: cannot listen: {error.strerror or error}") from None
        yield
