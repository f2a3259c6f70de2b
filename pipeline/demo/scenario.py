"""The demo itself: traffic, two kills in the middle of it, and the facts for the report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import psycopg
from psycopg import Connection
from psycopg.rows import TupleRow

from pipeline.demo.application import SCHEMA, Application, Notes
from pipeline.demo.destinations import make_targets
from pipeline.demo.events import plan_events
from pipeline.demo.facts import DestinationFact, Facts
from pipeline.demo.kills import Killer, PlannedKill
from pipeline.demo.ledger_view import add_destinations, leases_held, read_evidence
from pipeline.demo.options import Options
from pipeline.demo.picture import Picture
from pipeline.demo.receipts import ReceiptTail
from pipeline.demo.receiver import Hook
from pipeline.demo.receiver_process import ReceiverProcess
from pipeline.demo.site import Site
from pipeline.demo.topic_view import attempt_of, dispatch_of, quarantined_of, read_to_end, wait_for_records
from pipeline.demo.watch import Watch
from pipeline.stack.child_process import ChildProcess

SETTLE_SECONDS = 75.0
"""Longest wait, after the last admission, for the deliveries that must end."""
LOOK_SECONDS = 0.25
STOP_SECONDS = 20.0
PUBLISH_SECONDS = 20.0
"""Longest wait for the last rows to get into their topics."""
TRANSPORT_TIMEOUT_SECONDS = 15.0
"""A dispatch that no worker has claimed by then is handed over again."""
WORKER_KILL_AT = 0.25
CONNECTOR_KILL_AT = 0.50
"""Parts of all deliveries that have been received when the kill comes."""


class Scenario:
    """One run on one site. Use it once."""

    def __init__(self, site: Site, options: Options, picture: Picture, started: float) -> None:
        """`started` is the time.monotonic() from which the demo's duration counts."""
        self._site = site
        self._options = options
        self._picture = picture
        self._started = started
        self._targets = make_targets(options.destinations, options.seed)
        self._events = list(plan_events(options.events, self._targets, options.seed))
        self._planned = sum(len(event.destinations) for event in self._events if event.ends == "commit")
        self._notes = Notes()
        self._components = (*site.workers, site.connector, site.reconciler)
        hooks = {t.destination_id: Hook(secrets=[t.secret], behaviour=t.behaviour) for t in self._targets}
        self._receiver = ReceiverProcess(hooks, site.folder, on_start=site.on_start)
        self._killer = Killer(picture.note)

    def run(self) -> Facts:
        """Run it to the end and collect the facts. All components but the site's servers have ended then.

        Raises DemoError when a component dies by itself, StackError when one cannot be started, psycopg.Error and
        KafkaException when a server fails.
        """
        self._receiver.start()
        try:
            self._prepare()
            with psycopg.connect(self._site.operator_dsn, autocommit=True) as operator:
                watch = Watch(
                    operator,
                    ReceiptTail(self._receiver.receipts),
                    targets=self._targets,
                    notes=self._notes,
                    planned=self._planned,
                )
                self._run_traffic(operator, watch)
            return self._collect(watch)
        finally:
            self._receiver.stop()

    def _prepare(self) -> None:
        with psycopg.connect(self._site.admin_dsn) as admin:
            admin.execute(SCHEMA)
        with psycopg.connect(self._site.operator_dsn) as operator:
            add_destinations(operator, self._targets, self._receiver.base_url)
            operator.execute(
                "update outrider.ledger_setting set transport_timeout_seconds = %s", (TRANSPORT_TIMEOUT_SECONDS,)
            )

    def _run_traffic(self, operator: Connection[TupleRow], watch: Watch) -> None:
        try:
            asyncio.run(self._drive(operator, watch))
        except ExceptionGroup as group:
            # The first failure ended the others.
            error: Exception = group
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from group

    async def _drive(self, operator: Connection[TupleRow], watch: Watch) -> None:
        """Admit everything, with the kills on the way, until all that must end has ended, or time is up."""
        rate = self._options.events_per_second
        self._picture.note(
            f"admitting {self._options.events} events for {self._planned} deliveries, {rate:.0f} events/s"
        )
        application = Application(self._site.application_dsn, self._notes)
        async with asyncio.TaskGroup() as tasks:
            admitting = tasks.create_task(application.run(iter(self._events), rate))
            killing = tasks.create_task(self._killer.run(self._kill_plan(operator), lambda: watch.received))
            deadline: float | None = None
            while True:
                # In a thread, so that it delays no commit's time-stamp.
                view = await asyncio.to_thread(watch.look)
                self._picture.show(view)
                self._killer.check((*self._components, self._receiver.process))
                if admitting.done() and killing.done() and watch.is_settled(view):
                    return
                if admitting.done() and deadline is None:
                    self._picture.note("all admitted; waiting for what must end")
                    deadline = time.monotonic() + SETTLE_SECONDS
                if deadline is not None and time.monotonic() > deadline:
                    self._picture.note(f"not everything ended within {SETTLE_SECONDS:.0f} s: the report names it")
                    killing.cancel()
                    return
                await asyncio.sleep(LOOK_SECONDS)

    def _kill_plan(self, operator: Connection[TupleRow]) -> list[PlannedKill]:
        def busiest_worker() -> ChildProcess:
            # So that requests are in the air when it dies, whose outcome nobody will tell.
            held = leases_held(operator)
            return max(self._site.workers, key=lambda process: held.get(process.name, 0))

        return [
            PlannedKill(int(self._planned * WORKER_KILL_AT), busiest_worker),
            PlannedKill(int(self._planned * CONNECTOR_KILL_AT), lambda: self._site.connector),
        ]

    def _collect(self, watch: Watch) -> Facts:
        site = self._site
        self._picture.note("stopping the workers and the reconciler, so that the books stand still")
        _stop((*site.workers, site.reconciler))
        evidence = read_evidence(site.admin_dsn)
        self._picture.note("reading the topics to the end")
        attempt_ids = [attempt.attempt_id for attempt in evidence.attempts]
        message_ids = [row.message_id for row in evidence.outbox]
        wait_for_records(site.kafka, site.dispatch_topic, dispatch_of, message_ids, PUBLISH_SECONDS)
        wait_for_records(site.kafka, site.attempts_topic, attempt_of, attempt_ids, PUBLISH_SECONDS)
        # What it might still publish a second time must be there before we look.
        _stop((site.connector,))
        watch.read_receipts()
        return Facts(
            destinations={
                target.destination_id: DestinationFact(
                    type(target.behaviour).__name__, target.behaviour.settles, target.is_healthy
                )
                for target in self._targets
            },
            admissions=self._notes.admissions,
            rolled_back=self._notes.rolled_back,
            readmissions=self._notes.readmissions,
            business_rows=evidence.business_rows,
            deliveries=evidence.deliveries,
            attempts=evidence.attempts,
            event_ids=evidence.event_ids,
            outbox=evidence.outbox,
            dispatches=read_to_end(site.kafka, site.dispatch_topic, dispatch_of),
            attempt_records=read_to_end(site.kafka, site.attempts_topic, attempt_of),
            quarantined=read_to_end(site.kafka, site.quarantine_topic, quarantined_of),
            receipts=watch.receipts,
            kills=self._killer.kills,
            kills_planned=self._killer.planned,
            exit_statuses={process.name: process.exit_status for process in self._components},
            elapsed_seconds=time.monotonic() - self._started,
        )


def _stop(processes: Sequence[ChildProcess]) -> None:
    """Ask all of them to end, and wait for them together. SIGKILL comes after STOP_SECONDS."""

    async def stop() -> None:
        await asyncio.gather(*(asyncio.to_thread(partial(process.terminate, STOP_SECONDS)) for process in processes))

    asyncio.run(stop())
