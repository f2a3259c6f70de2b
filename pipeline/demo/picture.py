"""The live picture: rates, states per destination, kills as they happen. On stderr, so that stdout is the report's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

LINE_SECONDS = 2.0
FRAMES_PER_SECOND = 4
STATES = ("pending", "enqueued", "leased", "succeeded", "dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationView:
    destination_id: str
    behaviour: str
    states: Mapping[str, int]
    """Deliveries in each state of the ledger."""
    distinct: int
    """Deliveries that its receiver has seen."""
    repeats: int
    """Further requests for them."""

    @property
    def open(self) -> int:
        """Deliveries that have not ended."""
        return sum(count for state, count in self.states.items() if state not in ("succeeded", "dead"))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One moment of the demo."""

    planned: int
    """Deliveries that will be admitted in all."""
    committed: int
    rolled_back: int
    received: int
    """Deliveries that have reached a receiver."""
    requests_per_second: float
    destinations: Sequence[DestinationView]

    def count(self, state: str) -> int:
        """Deliveries in this state, over all destinations."""
        return sum(destination.states.get(state, 0) for destination in self.destinations)


class Picture(Protocol):
    """Where the demo shows itself."""

    def note(self, line: str) -> None:
        """Something happened."""

    def show(self, view: View) -> None:
        """So it looks now."""


@contextmanager
def opened(started: float) -> Iterator[Picture]:
    """A live table where stderr is a terminal, plain lines elsewhere. Times count from `started` (time.monotonic())."""
    console = Console(stderr=True)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True) as live:
            yield LivePicture(live, started)
    else:
        yield PlainPicture(console, started)


class PlainPicture:
    """A line for each note, and one for the state every LINE_SECONDS."""

    def __init__(self, console: Console, started: float) -> None:
        self._console = console
        self._started = started
        self._last = 0.0

    def note(self, line: str) -> None:
        text = f"{elapsed(self._started)}{line}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, view: View) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self.note(summary(view))


class LivePicture:
    """Summary, a row per destination; notes stay on the screen above it."""

    def __init__(self, live: Live, started: float) -> None:
        self._live = live
        self._started = started

    def note(self, line: str) -> None:
        self._live.console.print(f"{elapsed(self._started)}{line}", markup=False, highlight=False)

    def show(self, view: View) -> None:
        self._live.update(Group(Text(elapsed(self._started) + summary(view)), table(view)))


def elapsed(started: float) -> str:
    """Prefix of a line: seconds since `started`."""
    return f"{time.monotonic() - started:5.1f} s  "


def summary(view: View) -> str:
    """One line: how far it is."""
    waiting = sum(destination.open for destination in view.destinations)
    return (
        f"admitted {view.committed}/{view.planned}  received {view.received}  "
        f"{view.requests_per_second:.0f} requests/s  succeeded {view.count('succeeded')}  dead {view.count('dead')}  "
        f"waiting {waiting}  rolled back {view.rolled_back}"
    )


def table(view: View) -> Table:
    """The states of each destination."""
    grid = Table(box=None, padding=(0, 2), pad_edge=False)
    for title in ("destination", "receiver"):
        grid.add_column(title)
    for title in (*STATES, "received", "repeats"):
        grid.add_column(title, justify="right")
    for row in view.destinations:
        numbers = (*(row.states.get(state, 0) for state in STATES), row.distinct, row.repeats)
        grid.add_row(Text(row.destination_id), Text(row.behaviour), *(str(number or "") for number in numbers))
    return grid
