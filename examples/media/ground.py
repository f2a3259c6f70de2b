"""What all parts of the media story stand on: tables, publishers, happenings, and passes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from examples.stage import ProofError, Stage
from pipeline.core.ids import delivery_identity
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.source_file import read_source
from pipeline.reconcile.source_pass import run_source_pass
from pipeline.reconcile.source_result import SourcePassResult, Waking

FOLDER: Final = Path(__file__).parent
SOURCES: Final = FOLDER / "sources"
PUBLISHERS: Final = tuple(f"publisher-{number}" for number in range(8))
RATE_PER_SECOND: Final = 20.0
BURST: Final = 30
PATIENT: Final = "patient"
"""A publisher without a narrow quota, for what is killed."""
RECONCILE: Final = ("reconcile", "run", "media", "--json")

WITNESS: Final = """
create table media.start (destination_id text not null, at double precision not null);
create function media.note_start() returns trigger language plpgsql security definer as $$
begin
  insert into media.start values (new.destination_id, extract(epoch from new.leased_at));
  return null;
end $$;
create trigger note_start after update on outrider.delivery for each row
  when (new.state = 'leased' and old.state <> 'leased') execute function media.note_start();
"""
"""Each start by the clock that grants it, for the proof and for nothing else."""


def prepare(stage: Stage) -> None:
    """Tables, rights and publishers; the source is live."""
    stage.make_schema(FOLDER / "schema.sql")
    stage.admin.execute(WITNESS)
    application, reconciler = stage.login("application"), stage.login("reconciler")
    stage.admin.execute(
        sql.SQL(
            "grant usage on schema media to {application}, {reconciler};"
            "grant select on all tables in schema media to {application}, {reconciler};"
            "grant insert on media.happening to {application};"
            "grant execute on function media.claim_pending to {reconciler}"
        ).format(application=application, reconciler=reconciler)
    )
    stage.add_destination(PATIENT, timeout_seconds=2)
    for name in PUBLISHERS:
        stage.add_destination(
            name, start_rate_per_second=RATE_PER_SECOND, burst=BURST, concurrency=64, timeout_seconds=10
        )
    with stage.admin.cursor() as cursor:
        cursor.executemany(
            "insert into media.publisher values (%s, %s)", [(name, name) for name in (PATIENT, *PUBLISHERS)]
        )
    stage.outrider("source", "set", "media", "--mode", "live", "--reason", "reviewed")


def happens(stage: Stage, asset: str) -> str:
    """Something happens to an asset of the patient publisher; the id that its delivery will have."""
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application:
        application.execute(
            "insert into media.happening (publisher_id, asset, kind, version, document) "
            "values (%s, %s, 'transcoded', 1, %s)",
            (PATIENT, asset, json.dumps({"asset": asset})),
        )
    event_id = str(stage.value("select media.event_id(%s, %s, 'transcoded', 1)", PATIENT, asset))
    return delivery_identity(event_id, PATIENT)


def reconcile(stage: Stage) -> None:
    """A pass on demand, as the command makes it."""

    async def run() -> SourcePassResult:
        async with open_pool(stage.dsns["reconciler"], 2, "example") as pool:
            return await run_source_pass(pool, read_source(SOURCES / "media.toml"), Waking(woken_by="operator"))

    result = asyncio.run(run())
    if result.error is not None or not result.is_complete:
        raise ProofError(f"a pass over the source ended early: {result}")


def state(stage: Stage, delivery_id: str) -> object:
    return stage.value("select state from outrider.delivery where delivery_id = %s", delivery_id)


def all_terminal(stage: Stage) -> None:
    stage.wait(lambda: stage.states().keys() == {"succeeded"}, "everything is delivered")
