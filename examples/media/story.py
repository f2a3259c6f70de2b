"""The media story: killed at each point on the way, a release of thousands, publishers with quotas, and retention."""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg

from examples.media.ground import PATIENT, SOURCES, prepare
from examples.media.kills import play_kills
from examples.media.release import play_release
from examples.stage import Stage
from pipeline.ledger.pool import open_pool
from pipeline.reconcile.payload_retention import sweep_payloads

__all__ = ["SOURCES", "play"]

ASSETS: Final = 8_000
RETENTION_DAYS: Final = 90


def play(stage: Stage, *, assets: int = ASSETS) -> None:
    """Raises ProofError for what does not hold."""
    prepare(stage)
    play_kills(stage)
    _retention_keeps_the_identity(stage)
    play_release(stage, assets)


def _retention_keeps_the_identity(stage: Stage) -> None:
    documents = stage.admin.execute(
        "select media.event_id(publisher_id, asset, kind, version), document from media.happening order by 1"
    ).fetchall()
    moved = stage.value("select media.move_out(clock_timestamp())")
    stage.admin.execute(
        "update outrider.event set admitted_at = admitted_at - interval '1 year';"
        "update outrider.delivery set settled_at = settled_at - interval '1 year'"
    )
    removed = asyncio.run(_sweep(stage))
    before = stage.value("select count(*) from outrider.delivery")
    repeated: set[object] = set()
    with psycopg.connect(stage.dsns["application"], autocommit=True) as application:
        for event_id, document in documents:
            again = "select created from outrider.admit(%s, 'media.transcoded', convert_to(%s, 'UTF8'), destinations => array[%s])"
            repeated.update(application.execute(again, (event_id, document, PATIENT)).fetchall())
            try:
                application.execute(again, (event_id, "other", PATIENT))
            except psycopg.Error as error:
                repeated.add(error.sqlstate)
    stage.prove(
        moved == removed == len(documents)
        and stage.value("select count(*) from media.happening where document is not null") == 0
        and stage.value("select count(*) from outrider.event where payload is not null") == 0
        and repeated == {(False,), "OU001"}
        and stage.value("select count(*) from outrider.delivery") == before,
        "with documents and payloads moved out, the same identity makes nothing new, and other bytes under it are refused",
    )


async def _sweep(stage: Stage) -> int:
    """The ledger's own retention, as the reconciler does it every hour."""
    async with open_pool(stage.dsns["reconciler"], 2, "example") as pool:
        return await sweep_payloads(pool, keep_days=RETENTION_DAYS)
