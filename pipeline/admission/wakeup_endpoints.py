"""Wake-ups over HTTP: they make a pass over a source begin, and carry no meaning."""

from __future__ import annotations

from aiohttp import web

from pipeline.admission import asking, wire
from pipeline.admission.answers import json_response
from pipeline.admission.key_ring import Caller
from pipeline.admission.problems import Kind, Refusal
from pipeline.admission.router import PATH_VALUES
from pipeline.ledger.pool import Pool
from pipeline.ledger.sources import wake


class WakeupEndpoints:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def wake_source(self, request: web.BaseRequest, caller: Caller) -> web.Response:
        """202 once the wake-up is durable. Calls that no pass has taken yet share one run."""
        source_id = asking.storable(request[PATH_VALUES]["source"], "source")
        run_id = await wake(self._pool, source_id, woken_by="http", operator=f"api:{caller.key_id}")
        if run_id is None:
            raise Refusal(Kind.NOT_FOUND, "there is no such source", field="source", mend="see outrider source list")
        return json_response(wire.Wakeup(run_id=str(run_id), source=source_id), 202)
