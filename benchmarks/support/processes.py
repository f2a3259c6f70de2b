"""What processes have used, as Linux counts it in /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of one process in MiB: now, and at most so far."""

    now: float
    peak: float


def memory(pid: int) -> Memory:
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) / _KIB
    return Memory(round(found["VmRSS"], 1), round(found["VmHWM"], 1))


def cpu_seconds(pid: int, *, children: bool = False) -> float:
    """User and system time of a process so far; with ``children`` also of those that it started and that live."""
    total = 0
    for stat in (Path("/proc").glob("[0-9]*/stat")) if children else (Path(f"/proc/{pid}/stat"),):
        with suppress(OSError):
            parent, used = _parent_and_ticks(stat)
            if pid in (parent, int(stat.parent.name)):
                total += used
    return total / _TICKS


def _parent_and_ticks(stat: Path) -> tuple[int, int]:
    fields = stat.read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[11]) + int(fields[12])
