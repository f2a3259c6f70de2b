"""``outrider run worker``."""

from __future__ import annotations

import asyncio
import gc
import logging
import os

import uvloop

from pipeline.cli.errors import CommandError
from pipeline.delivery.start_checks import NotReadyError
from pipeline.delivery.worker import Worker
from pipeline.settings import Settings


def run_worker(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; the exit status. Raises CommandError where it cannot start."""

    async def run() -> int:
        worker = Worker(settings)
        # Nothing of the start becomes garbage, and little of what comes after has cycles.
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        status = await worker.run()
        if worker.left_behind:
            # Nothing is left to lose, and the event loop would wait for Faust without end.
            logging.shutdown()
            os._exit(status)
        return status

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(run())
        except NotReadyError as error:
            raise CommandError(str(error)) from None
