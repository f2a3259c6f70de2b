"""``outrider source check``: the files of the sources, before a reconciler reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from pipeline.cli.acting import AsJson
from pipeline.cli.configured_sources import configured_source, configured_sources
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_json
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.source_check import check_on_database
from pipeline.reconcile.source_file import Source
from pipeline.settings import Settings, load_settings


def register(group: typer.Typer) -> None:
    group.command("check")(check)


def check(
    source: Annotated[list[str] | None, typer.Argument(help="Only these. Default: all.", show_default=False)] = None,
    *,
    on_database: Annotated[
        bool, typer.Option("--on-database", help="Run each statement once as the reconciler's login, and undo it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read the files of OUTRIDER_SOURCES_DIRECTORY; exit code 1 where one is wrong."""
    settings = load_settings()
    if settings.sources_directory is None:
        raise CommandError("OUTRIDER_SOURCES_DIRECTORY is not set: point it at the folder with the sources' files")
    sources = [configured_source(settings, name) for name in source or configured_sources(settings)]
    wrong = asyncio.run(_wrong(settings, sources)) if on_database else dict.fromkeys(one.source_id for one in sources)
    if as_json:
        print_json([{"source": source_id, "wrong": why} for source_id, why in wrong.items()])
    else:
        print_columns(("SOURCE", "WRONG"), wrong.items())
    raise typer.Exit(any(why is not None for why in wrong.values()))


async def _wrong(settings: Settings, sources: Sequence[Source]) -> dict[str, str | None]:
    """By source id; None where nothing is wrong."""
    async with open_pool(settings.postgres_conninfo, 1, "source check") as pool:
        return {source.source_id: await check_on_database(pool, source) for source in sources}
