"""Lanes of several workers on one ledger, in virtual time: joins, crashes, two owners, changes of limits.

The ledger is a model of what its statements promise: one bucket, one count of leases, a claim that counts only for the
current dispatch. Under any order of events its limits hold, no delivery is lost, and in the end each one is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.core.pacing import TokenBucket
from pipeline.delivery.lanes import Lanes, Limits, ParkReason
from tests.support.start_log import worst_excess

DESTINATION = "a"
LEASE_SECONDS = 5.0
DEPTH, CEILING = 20, 16


@dataclass
class Row:
    """A delivery in the model. ``until``: when it is due, or its lease is over."""

    state: str = "enqueued"
    dispatch_seq: int = 1
    attempt: int = 0
    until: float = 0.0


@dataclass(frozen=True)
class Message:
    number: int
    dispatch_seq: int
    is_retry: bool


@dataclass
class Ledger:
    limits: Limits
    bucket: TokenBucket
    rows: dict[int, Row] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)

    @property
    def leased(self) -> int:
        return sum(row.state == "leased" for row in self.rows.values())

    def change(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.bucket.configure(limits.start_rate_per_second, limits.burst, now=now)
        self.starts = []  # counted anew, as if the bucket had been full at the change

    def claim(self, message: Message, now: float) -> tuple[str, float]:
        row = self.rows[message.number]
        if row.state != "enqueued" or row.dispatch_seq != message.dispatch_seq:
            return "stale", 0.0
        if self.leased >= self.limits.concurrency:
            return "busy", 0.0
        if not self.bucket.take(now):
            return "paced", self.bucket.wait_seconds(now)
        row.state, row.attempt, row.until = "leased", row.attempt + 1, now + LEASE_SECONDS
        self.starts.append(now)
        return "claimed", 0.0

    def park(self, message: Message, until: float) -> None:
        row = self.rows[message.number]
        if row.state == "enqueued" and row.dispatch_seq == message.dispatch_seq:
            row.state, row.until = "pending", until

    def settle(self, number: int, attempt: int, state: str, until: float) -> None:
        row = self.rows[number]
        if row.state == "leased" and row.attempt == attempt:
            row.state, row.until = state, until

    def dispatch_what_is_due(self, now: float) -> list[Message]:
        messages = []
        for number, row in self.rows.items():
            if row.state in ("pending", "leased") and row.until <= now:
                row.state, row.dispatch_seq = "enqueued", row.dispatch_seq + 1
                messages.append(Message(number, row.dispatch_seq, is_retry=row.attempt > 0))
        return messages


class Worker:
    """Its lanes, what it has in flight, and the messages that it has not settled."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.lanes: Lanes[Message] = Lanes(
            ceiling=CEILING, depth=DEPTH, park_after_seconds=1.0, is_retry=lambda message: message.is_retry
        )
        self.unsettled: list[Message] = []
        self.flying: list[tuple[Message, int]] = []

    def read(self, message: Message, ledger: Ledger, now: float) -> None:
        self.unsettled.append(message)
        parked = self.lanes.admit(DESTINATION, message, now)
        if parked is not None:
            self._give_back(parked, ledger, now)

    def refresh(self, limits: Limits, now: float) -> None:
        self.lanes.configure(DESTINATION, limits, now)

    def work(self, ledger: Ledger, now: float) -> None:
        for parked in list(self.lanes.surplus(now)):
            self._give_back(parked, ledger, now)
        while (start := self.lanes.take(now)) is not None:
            message = start[1]
            verdict, wait_seconds = ledger.claim(message, now)
            if verdict == "claimed":
                self.flying.append((message, ledger.rows[message.number].attempt))
            elif verdict == "stale":
                self.unsettled.remove(message)
                self.lanes.finished(DESTINATION, now)
            else:
                reason = ParkReason.RATE if verdict == "paced" else ParkReason.CONCURRENCY
                self.lanes.defer(DESTINATION, message, reason, wait_seconds, now)

    def end_one(self, pick: int, ledger: Ledger, state: str, now: float, seconds: float) -> None:
        message, attempt = self.flying.pop(pick % len(self.flying))
        ledger.settle(message.number, attempt, state, now + 0.5)
        self.unsettled.remove(message)
        self.lanes.finished(DESTINATION, now, duration_seconds=seconds)

    def _give_back(self, parked, ledger: Ledger, now: float) -> None:
        ledger.park(parked.item, now + parked.delay_seconds)
        self.unsettled.remove(parked.item)


LIMITS = st.builds(
    Limits, start_rate_per_second=st.floats(0.5, 50), burst=st.integers(1, 15), concurrency=st.integers(1, 8)
)


class ManyWorkers(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 0.0
        limits = Limits(10.0, 5, 4)
        self.ledger = Ledger(limits, TokenBucket(10.0, 5, now=0.0))
        self.workers = [Worker(limits, 0.0)]
        self.topic: list[Message] = []

    @rule(count=st.integers(1, 40))
    def admit(self, count):
        for _ in range(count):
            number = len(self.ledger.rows)
            self.ledger.rows[number] = Row()
            self.topic.append(Message(number, 1, is_retry=False))

    @rule(pick=st.integers(0, 100), count=st.integers(1, 60))
    def read(self, pick, count):
        worker = self.workers[pick % len(self.workers)]
        for message in self.topic[:count]:
            worker.read(message, self.ledger, self.now)
        del self.topic[:count]
        worker.refresh(self.ledger.limits, self.now)

    @rule(pick=st.integers(0, 100))
    def read_again_what_another_has_too(self, pick):
        """Two believe that they own the partition."""
        worker, other = self.workers[pick % len(self.workers)], self.workers[(pick + 1) % len(self.workers)]
        if worker is not other:
            for message in list(other.unsettled):
                if message not in worker.unsettled:
                    worker.read(message, self.ledger, self.now)

    @rule(seconds=st.floats(0.001, 4))
    def pass_time(self, seconds):
        self.now += seconds
        for worker in self.workers:
            worker.work(self.ledger, self.now)

    @precondition(lambda self: any(worker.flying for worker in self.workers))
    @rule(pick=st.integers(0, 100), state=st.sampled_from(["done", "done", "pending"]), seconds=st.floats(0.001, 5))
    def answer(self, pick, state, seconds):
        flying = [worker for worker in self.workers if worker.flying]
        flying[pick % len(flying)].end_one(pick, self.ledger, state, self.now, seconds)

    @precondition(lambda self: len(self.workers) < 4)
    @rule()
    def join(self):
        self.workers.append(Worker(self.ledger.limits, self.now))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0, 100))
    def crash(self, pick):
        """What it had not settled is read again from the topic; its leases run out."""
        self.topic += self.workers.pop(pick % len(self.workers)).unsettled

    @rule(limits=LIMITS)
    def change_limits(self, limits):
        """Workers learn of it later, each in its time."""
        self.ledger.change(limits, self.now)

    @rule(pick=st.integers(0, 100))
    def refresh(self, pick):
        self.workers[pick % len(self.workers)].refresh(self.ledger.limits, self.now)

    @rule()
    def reconcile(self):
        self.topic += self.ledger.dispatch_what_is_due(self.now)

    @invariant()
    def the_limits_hold_and_memory_is_bounded(self):
        limits, starts = self.ledger.limits, self.ledger.starts
        if starts:
            excess = worst_excess(starts, rate_per_second=limits.start_rate_per_second, burst=limits.burst)
            assert excess <= 1e-6
        for worker in self.workers:
            assert worker.lanes.in_flight == len(worker.flying) <= CEILING
            # A deferral may bring a lane above its depth by what was in flight.
            assert worker.lanes.waiting <= DEPTH + CEILING

    @invariant()
    def no_delivery_is_lost(self):
        held = {(m.number, m.dispatch_seq) for worker in self.workers for m in worker.unsettled}
        held |= {(message.number, message.dispatch_seq) for message in self.topic}
        for number, row in self.ledger.rows.items():
            assert row.state != "enqueued" or (number, row.dispatch_seq) in held

    def teardown(self):
        """However it went: with a receiver that answers and room to start, everything is done in the end."""
        self.ledger.change(Limits(1000.0, 1000, 100), self.now)
        for _ in range(400):
            if all(row.state == "done" for row in self.ledger.rows.values()):
                return
            self.now += 2.0
            self.reconcile()
            for number, worker in enumerate(self.workers):
                worker.refresh(self.ledger.limits, self.now)
                if number == 0:
                    for message in self.topic:
                        worker.read(message, self.ledger, self.now)
                    self.topic = []
                worker.work(self.ledger, self.now)
                while worker.flying:
                    worker.end_one(0, self.ledger, "done", self.now, 0.01)
        assert {row.state for row in self.ledger.rows.values()} <= {"done"}


TestManyWorkers = ManyWorkers.TestCase
TestManyWorkers.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
