"""``outrider reconcile …``: a pass now, by hand."""

from __future__ import annotations

import asyncio
from dataclasses import asdict

import typer

from pipeline.cli.acting import AsJson, Operator, OptionalReason, act
from pipeline.cli.output import print_fields, print_json
from pipeline.ledger.operator import Act
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.loop import pass_limits
from pipeline.reconcile.passes import PassResult, run_pass
from pipeline.settings import Settings, load_settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Find what waits for its turn, and hand it to Kafka again.")
    group.callback()(lambda: None)  # one command so far, and still a group
    group.command("run")(run)
    app.add_typer(group, name="reconcile")


def run(*, operator: Operator = None, reason: OptionalReason = None, as_json: AsJson = False) -> None:
    """One pass now: due deliveries, expired leases, dispatches that got lost.

    Safe beside running reconcilers. It needs their login: an operator's may not write attempts, not even expired ones.
    """
    result = asyncio.run(_run(load_settings(), act(operator, reason)))
    counts = {"run_id": str(result.run_id), **asdict(result.moved), "is_complete": result.is_complete}
    if as_json:
        print_json(counts)
    else:
        print_fields(counts.items())


async def _run(settings: Settings, by: Act) -> PassResult:
    async with open_pool(settings.postgres_conninfo, 1, "reconcile run") as pool:
        return await run_pass(pool, pass_limits(settings), woken_by="operator", operator=by.operator, reason=by.reason)
