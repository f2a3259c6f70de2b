"""Every start of an attempt, as the ledger and as the receiver saw it, and the check of the limits over all windows."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import psycopg

RECORD_STARTS = """
create table public.start_log (destination_id text, at double precision, in_flight bigint);
create function public.log_start() returns trigger language plpgsql security definer as $$
begin
  insert into public.start_log
  select new.destination_id, extract(epoch from new.leased_at), count(*) from outrider.delivery d
  where d.destination_id = new.destination_id and d.state = 'leased';
  return null;
end $$;
create trigger log_start after update on outrider.delivery for each row
  when (new.state = 'leased' and old.state <> 'leased') execute function public.log_start();
"""


class LedgerStarts:
    """Records, from here on, each claim that took a lease: its time by the database's clock, and the leases then."""

    def __init__(self, ledger: psycopg.Connection) -> None:
        self._ledger = ledger
        ledger.execute(RECORD_STARTS)

    def times(self, destination_id: str, since: float = 0.0) -> list[float]:
        rows = self._ledger.execute(
            "select at from public.start_log where destination_id = %s and at >= %s order by at",
            (destination_id, since),
        ).fetchall()
        return [float(at) for (at,) in rows]

    def most_in_flight(self, destination_id: str) -> int:
        row = self._ledger.execute(
            "select coalesce(max(in_flight), 0) from public.start_log where destination_id = %s", (destination_id,)
        ).fetchone()
        assert row is not None
        return int(row[0])


class ReceiverStarts:
    """Arrivals by path, and how many requests of a path were answered at once at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_flight: dict[str, int] = defaultdict(int)
        self.most_in_flight: dict[str, int] = defaultdict(int)
        self.times: dict[str, list[float]] = defaultdict(list)

    def arrived(self, path: str) -> None:
        with self._lock:
            self.times[path].append(time.time())
            self._in_flight[path] += 1
            self.most_in_flight[path] = max(self.most_in_flight[path], self._in_flight[path])

    def answered(self, path: str) -> None:
        with self._lock:
            self._in_flight[path] -= 1


def worst_excess(times: Sequence[float], *, rate_per_second: float, burst: float) -> float:
    """Over every window: starts in it, less what it allows. At most 0 where ``burst + rate * t`` holds."""
    worst = -float("inf")
    lowest = float("inf")  # of (number before - rate * time), over the starts so far that may begin a window
    for number, at in enumerate(times):
        lowest = min(lowest, number - rate_per_second * at)
        worst = max(worst, number + 1 - rate_per_second * at - lowest - burst)
    return worst
