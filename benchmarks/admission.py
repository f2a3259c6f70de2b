"""Admission over HTTP against the least that an endpoint can do and still keep its word.

``make bench NAME=admission ARGS="--seconds 5 --json"`` starts its own PostgreSQL, which flushes each commit, and beside it

- the API, as a process of its own: CloudEvents in binary mode, each for one named destination;
- a bare aiohttp handler, as a process of its own: one INSERT of the id and the body, one commit for each request, over
  more connections than the API has.

Both get the same requests from the same clients on the same database, in turns, so that what else the machine does falls
on both. An answer counts when its status says so, and afterwards the rows are counted: nothing was answered that is
not there. The goal is twice the bare handler's events/s, although the API also authenticates, validates, and writes the
delivery and its dispatch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psycopg
import uvloop
from aiohttp import web
from psycopg_pool import AsyncConnectionPool

from benchmarks.report import Goal, machine, show
from benchmarks.support.processes import cpu_seconds
from pipeline.admission.key_tokens import new_token
from pipeline.ledger.api_keys import KeyLimits, Scope, create_key
from pipeline.ledger.migrate import migrate_up
from pipeline.stack.child_process import ChildProcess, Command
from pipeline.stack.component import component_process, program_environment
from pipeline.stack.embedded import EmbeddedStack
from pipeline.stack.login_roles import create_login_roles
from pipeline.stack.ports import free_ports

CLIENTS = (32, 256)
PAYLOAD = b'{"asset":42,"state":"processed","padding":"' + b"x" * 350 + b'"}'
DESTINATIONS = 20
API_CONNECTIONS = 4
BARE_CONNECTIONS = 16
"""By default more than the API has, so that the comparison leans to the other side."""
STARTS_SECONDS = 60.0


@dataclass(slots=True)
class Round:
    """What one round saw. Latencies are seconds."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the server and the database, not of the clients."""
    accepted: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.accepted / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return round(ordered[int(share * (len(ordered) - 1))] * 1000, 1)


class Client(asyncio.Protocol):
    """One connection that sends the next request when the answer to the one before is there.

    No HTTP library: two cores hold the server, the database and this, and what the client costs, neither can use.
    """

    def __init__(self, request: Callable[[], bytes], accepts: bytes, result: Round, until: float) -> None:
        self._request = request
        self._accepts = accepts
        self._result = result
        self._until = until
        self._answer = b""
        self._sent_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not registered as one
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]):
            return
        if head.startswith(b"HTTP/1.1 " + self._accepts):
            self._result.accepted += 1
            self._result.latencies.append(time.perf_counter() - self._sent_at)
        else:
            self._result.refused += 1
        self._answer = b""
        if time.perf_counter() < self._until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request())


async def load(port: int, clients: int, seconds: float, request: Callable[[], bytes], accepts: bytes) -> Round:
    result = Round()
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    connected = [
        await loop.create_connection(lambda: Client(request, accepts, result, started + seconds), "127.0.0.1", port)
        for _ in range(clients)
    ]
    await asyncio.gather(*(client.done for _, client in connected))
    result.seconds = time.perf_counter() - started
    return result


class Requests:
    """Requests whose ids never come twice, for each destination in turn."""

    def __init__(self, head: str) -> None:
        """``head`` may name ``%(n)d``, the number of the request, and ``%(d)d``, that of its destination."""
        self._head = head
        self._number = 0

    def __call__(self) -> bytes:
        self._number += 1
        return (self._head % {"n": self._number, "d": self._number % DESTINATIONS}).encode() + PAYLOAD


def to_api(key: str) -> Requests:
    return Requests(
        "POST /v1/events?destination=d%(d)d HTTP/1.1\r\nHost: bench\r\nce-specversion: 1.0\r\nce-id: %(n)d\r\n"
        f"ce-source: /bench\r\nce-type: media.processed\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(PAYLOAD)}\r\n\r\n"
    )


def to_bare() -> Requests:
    return Requests(
        "POST /events/%(n)d HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(PAYLOAD)}\r\n\r\n"
    )


async def serve_bare(dsn: str, port: int, connections: int) -> None:
    """The handler to compare with."""
    async with AsyncConnectionPool(
        dsn, min_size=connections, max_size=connections, kwargs={"autocommit": True}
    ) as pool:

        async def insert(request: web.Request) -> web.Response:
            body = await request.read()
            async with pool.connection() as connection:
                await connection.execute(
                    "insert into bare_event (event_id, payload) values (%s, %b)", (request.match_info["id"], body)
                )
            return web.json_response({"accepted": 1}, status=202)

        application = web.Application()
        application.add_routes([web.post("/events/{id}", insert)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


async def measure(
    servers: dict[str, tuple[int, int, Requests]], postmaster: int, seconds: float, rounds: int
) -> dict[str, list[Round]]:
    """Rounds by name, the servers in turns. Each server has a pid, a port and its requests."""
    found: dict[str, list[Round]] = {}
    for _, port, requests in servers.values():
        await load(port, 32, 1.0, requests, b"202")
    for clients in CLIENTS:
        for _ in range(rounds):
            for name, (pid, port, requests) in servers.items():
                used = cpu_seconds(pid) + cpu_seconds(postmaster, children=True)
                round_ = await load(port, clients, seconds, requests, b"202")
                round_.cpu_seconds = cpu_seconds(pid) + cpu_seconds(postmaster, children=True) - used
                found.setdefault(f"{name}_{clients}", []).append(round_)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.admission", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each server at each number of clients")
    parser.add_argument("--bare-connections", type=int, default=BARE_CONNECTIONS, help="of the bare handler")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve-bare", nargs=2, metavar=("DSN", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_bare(options.serve_bare[0], int(options.serve_bare[1]), options.bare_connections))
        return 0
    measured_on = machine()
    with tempfile.TemporaryDirectory() as folder, EmbeddedStack(servers=("postgres",)) as stack:
        figures, goals = run(stack, Path(folder), options.seconds, options.rounds, options.bare_connections)
    return show("admission", measured_on, figures, goals, as_json=options.json)


def run(
    stack: EmbeddedStack, folder: Path, seconds: float, rounds: int, bare_connections: int
) -> tuple[dict[str, Any], list[Goal]]:
    migrate_up(stack.postgres_dsn)
    role, password = create_login_roles(stack.postgres_dsn)["api"]
    token = new_token()
    with psycopg.connect(stack.postgres_dsn, autocommit=True) as connection:
        connection.execute("create table bare_event (event_id text primary key, payload bytea not null)")
        connection.execute(
            "insert into outrider.destination (destination_id, url) "
            "select 'd' || n, 'https://receiver.example' from generate_series(0, %s) n",
            [DESTINATIONS - 1],
        )
        limits = KeyLimits(requests_per_second=1e6, bytes_per_second=1e12, in_flight_max=10_000)
        create_key(
            connection,
            key_id=token.key_id,
            name="bench",
            secret_sha256=token.secret_sha256,
            scopes=[Scope.ADMIT],
            limits=limits,
            created_by="bench",
            expires_at=None,
        )
        api_port, bare_port = free_ports(2)
        api = component_process(
            "api",
            {
                "postgres_dsn": stack.postgres.dsn_for(user=role, password=password),
                "postgres_pool_size": API_CONNECTIONS,
                "api_port": api_port,
            },
            log=folder / "api.log",
        )
        bare = ChildProcess(
            "bare",
            Command(
                arguments=[
                    *(sys.executable, "-m", "benchmarks.admission"),
                    *("--serve-bare", stack.postgres_dsn, str(bare_port)),
                    *("--bare-connections", str(bare_connections)),
                ],
                environment=program_environment({}, inherit_settings=False),
                directory=Path.cwd(),
                log=folder / "bare.log",
            ),
        )
        try:
            api.start()
            bare.start()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_until_they_answer(api_port, bare_port, str(token)))
                postmaster = stack.postgres.process.pid
                servers = {
                    "bare": (bare.pid, bare_port, to_bare()),
                    "api": (api.pid, api_port, to_api(str(token))),
                }
                found = runner.run(measure(servers, postmaster, seconds, rounds))
        finally:
            api.terminate(30)
            bare.kill()
        events = connection.execute(
            "select (select count(*) from outrider.event), (select count(*) from outrider.dispatch_outbox)"
        ).fetchone()
    figures, goals = _figures(found, events)
    return {"api_connections": API_CONNECTIONS, "bare_connections": bare_connections} | figures, goals


async def _until_they_answer(api_port: int, bare_port: int, key: str) -> None:
    probe = f"GET /v1/nowhere HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    # A parameter that does not exist is complained about only to a key that is known.
    to_known = (
        f"POST /v1/events?nonsense=1 HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    for port, request, accepts in ((api_port, to_known, b"400"), (bare_port, probe, b"404")):
        async with asyncio.timeout(STARTS_SECONDS):
            while True:
                try:
                    if (await load(port, 1, 0.0, lambda: request, accepts)).accepted:  # noqa: B023
                        break
                except OSError:
                    pass
                await asyncio.sleep(0.05)
    # The probe of the database runs every second.
    await asyncio.sleep(1.5)


def _figures(found: dict[str, list[Round]], events: tuple[Any, ...] | None) -> tuple[dict[str, Any], list[Goal]]:
    figures: dict[str, Any] = {}
    goals = []
    for clients in CLIENTS:
        medians = {}
        for server in ("bare", "api"):
            rounds = found[f"{server}_{clients}"]
            medians[server] = statistics.median(round_.per_second for round_ in rounds)
            middle = min(rounds, key=lambda round_: abs(round_.per_second - medians[server]))
            figures[f"{server}_{clients}_clients_events_per_second"] = round(medians[server])
            figures[f"{server}_{clients}_clients_p50_ms"] = middle.percentile_ms(0.5)
            figures[f"{server}_{clients}_clients_p99_ms"] = middle.percentile_ms(0.99)
            used = sum(round_.cpu_seconds for round_ in rounds) / sum(round_.accepted for round_ in rounds)
            figures[f"{server}_{clients}_clients_cpu_us_per_event"] = round(used * 1e6)
            figures[f"{server}_{clients}_clients_refused"] = sum(round_.refused for round_ in rounds)
        ratio = round(medians["api"] / medians["bare"], 2)
        goals.append(Goal.at_least(f"times_the_bare_handler_at_{clients}_clients", ratio, "x", 2.0))
    answered = sum(round_.accepted for name, rounds in found.items() if name.startswith("api") for round_ in rounds)
    figures["events_answered_for"] = answered
    figures["events_in_the_ledger"] = events and events[0]
    missing = answered - min(events) if events else answered
    goals.append(Goal.at_most("answered_for_and_not_in_the_ledger", max(0, missing), "events", 0))
    return figures, goals


if __name__ == "__main__":
    sys.exit(main())
