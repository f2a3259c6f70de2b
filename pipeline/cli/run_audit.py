"""``outrider run audit``."""

from __future__ import annotations

import asyncio

from pipeline.audit.group import AuditGroup, MissingTopicError
from pipeline.cli.errors import CommandError
from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.settings import Settings


def run_audit(settings: Settings) -> int:
    """Record until SIGTERM or SIGINT, which end it after the batch at hand."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    group = AuditGroup(settings)
    on_signal(group.stop)
    async with listening("HEALTH", serve_health(settings.health_host, settings.health_port, group.ready)):
        try:
            # Its clients block, so it has a thread of its own beside the listener.
            await asyncio.to_thread(group.run)
        except MissingTopicError as error:
            raise CommandError(f"topic {error} does not exist in Kafka: run outrider topics apply") from None
        finally:
            group.stop()
    return 0
