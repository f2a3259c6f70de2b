"""``outrider run api``."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import uvloop

from pipeline.admission.api import ApiLimits, serve_api
from pipeline.admission.destination_endpoints import Ping, Receivers
from pipeline.admission.probe import DatabaseProbe
from pipeline.admission.problems import Kind, Refusal
from pipeline.admission.wire import Verification
from pipeline.cli.destination_ping import PingError, ping
from pipeline.cli.destination_rules import RuleError, check_url, parse_networks
from pipeline.cli.errors import CommandError
from pipeline.cli.listening import listening, on_signal
from pipeline.health import serve_health
from pipeline.ledger.pool import open_pool
from pipeline.settings import Settings


def run_api(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT."""
    # What was imported stays, so no collection need look at it again; a request leaves few cycles behind.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))


def receivers_of(settings: Settings) -> Receivers:
    """What destinations made over the API may be, and how they are verified. Raises CommandError."""
    networks = (settings.api_receiver_networks or "").split()
    try:
        parsed = parse_networks(networks)
    except RuleError as error:
        raise CommandError(f"OUTRIDER_API_RECEIVER_NETWORKS: {error}") from None
    return Receivers(
        check_url=partial(
            check_url,
            allow_http=settings.api_receiver_http,
            networks=parsed,
            ports=settings.target_port_ranges,
        ),
        ping=partial(_ping, settings),
        vault=settings.vault,
        networks=networks,
    )


async def _ping(settings: Settings, destination_id: str) -> Ping:
    try:
        outcome = await ping(settings, destination_id)
    except PingError as error:
        raise Refusal(Kind.VERIFICATION, str(error), mend="ask the operators") from None
    verification = Verification(
        success=outcome.is_success,
        outcome=outcome.outcome,
        status=outcome.status,
        error=outcome.error,
        seconds=outcome.seconds,
    )
    return Ping(outcome.url, verification)


async def _run(settings: Settings) -> int:
    stopping = asyncio.Event()
    on_signal(stopping.set)
    receivers = receivers_of(settings)
    limits = ApiLimits(
        body_bytes_max=settings.api_body_bytes_max,
        batch_bytes_max=settings.api_batch_bytes_max,
        batch_items_max=settings.api_batch_items_max,
        in_flight_max=settings.api_in_flight_max,
        buffered_bytes_max=settings.api_buffered_bytes_max,
    )
    async with open_pool(settings.postgres_conninfo, settings.postgres_pool_size, "api") as pool:
        probe = DatabaseProbe(pool)
        api = serve_api(
            settings.api_host,
            settings.api_port,
            pool,
            probe,
            conninfo=settings.postgres_conninfo,
            receivers=receivers,
            limits=limits,
        )
        async with (
            listening("HEALTH", serve_health(settings.health_host, settings.health_port, probe.ready)),
            listening("API", api),
        ):
            await stopping.wait()
    return 0
