"""``outrider reconcile …``: a pass now, by hand."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pipeline.cli.acting import AsJson, Operator, OptionalReason, act
from pipeline.cli.configured_sources import configured_source
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_fields, print_json
from pipeline.cli.report_commands import report
from pipeline.ledger.operator import Act
from pipeline.ledger.pool import open_pool
from pipeline.ledger.sources import may_pass
from pipeline.ledger.sources import register as register_source
from pipeline.reconcile.loop import pass_limits
from pipeline.reconcile.passes import run_pass
from pipeline.reconcile.shadow import LookResult, look
from pipeline.reconcile.source_file import Source
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking
from pipeline.settings import Settings, load_settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Find what waits for its turn, and hand it to Kafka again.")
    group.command("run")(run)
    group.command("report")(report)
    app.add_typer(group, name="reconcile")


def run(
    source: Annotated[str | None, typer.Argument(help="A source: admit what is due in it.", show_default=False)] = None,
    *,
    operator: Operator = None,
    reason: OptionalReason = None,
    as_json: AsJson = False,
) -> None:
    """One pass now: due deliveries, expired leases, dispatches that got lost; or, named, the due rows of a source.

    Safe beside running reconcilers. It needs their login: an operator's may not write attempts, and admits nothing.
    """
    settings, by = load_settings(), act(operator, reason)
    if source is None:
        _print(asyncio.run(_run(settings, by)), as_json=as_json)
        return
    result, seen = asyncio.run(_run_source(settings, configured_source(settings, source), by))
    shown = {"run_id": str(result.run_id), **result.counts, "shards": list(result.shards), "error": result.error}
    if seen is not None:
        shown |= {"shadow_shards": list(result.shadow_shards), "look": {"run_id": str(seen.run_id), **seen.counts}}
    _print(shown, as_json=as_json)
    error = result.error or (seen.error if seen is not None else None)
    if error is not None:
        raise CommandError(f"{source}: {error}")
    if seen is None and not (result.enabled and result.shards):
        why = "no shard of it is live" if result.enabled else "it is disabled"
        raise CommandError(f"{source}: {why}, so nothing was looked for: outrider source set {source} --help")


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        print_fields(shown.items())


async def _run(settings: Settings, by: Act) -> dict[str, Any]:
    async with open_pool(settings.postgres_conninfo, 1, "reconcile run") as pool:
        result = await run_pass(
            pool, pass_limits(settings), woken_by="operator", operator=by.operator, reason=by.reason
        )
    return {"run_id": str(result.run_id), **asdict(result.moved), "is_complete": result.is_complete}


async def _run_source(settings: Settings, source: Source, by: Act) -> tuple[SourcePassResult, LookResult | None]:
    async with open_pool(settings.postgres_conninfo, 2, "reconcile run") as pool:
        if not await may_pass(pool):
            raise CommandError("permission denied: only a login in outrider_reconciler passes over a source")
        await register_source(
            pool,
            source.source_id,
            description=source.description,
            shard_count=source.shard_count,
            can_shadow=source.lookup is not None,
        )
        waking = Waking(woken_by="operator", operator=by.operator, reason=by.reason, retries_refused=True)
        result = await run_source_pass(pool, source, waking)
        seen = await look(pool, source, result.shadow_shards, waking) if result.shadow_shards else None
    return result, seen
