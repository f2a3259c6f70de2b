"""A release of thousands of assets at once: two passes divide it, without a spike of memory or a burst beyond a quota."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

from examples.media.ground import BURST, PUBLISHERS, RATE_PER_SECOND, RECONCILE
from examples.stage import Stage
from pipeline.core.ids import delivery_identity

WATCH_SECONDS: Final = 1.0
MEMORY_MB_MAX: Final = 48
CLOCK_SECONDS: Final = 1e-5
"""What a float keeps of seconds since 1970."""


def play_release(stage: Stage, assets: int) -> None:
    small_mb = _peak_mb(_release(stage, 8, "warm"))
    passes = _release(stage, assets, "release", passes=2)
    peak_mb = _peak_mb(passes)
    admitted = [found["admitted"] for found, _ in passes]
    stage.prove(
        sum(admitted) == assets and sum(found["existing"] for found, _ in passes) == 0,
        f"two reconcilers at once divided {assets} assets ({' and '.join(map(str, admitted))})",
    )
    stage.prove(
        peak_mb - small_mb < MEMORY_MB_MAX,
        f"their memory had no spike ({peak_mb:.0f} MB at the most, {small_mb:.0f} MB for eight assets)",
    )
    expected = {
        delivery_identity(event_id, publisher)
        for event_id, publisher in stage.admin.execute(
            "select media.event_id(publisher_id, asset, kind, version), publisher_id from media.happening"
        ).fetchall()
    }
    found = {row[0] for row in stage.admin.execute("select delivery_id from outrider.delivery").fetchall()}
    stage.prove(found == expected, "each asset has its one delivery")
    enough = BURST + WATCH_SECONDS * RATE_PER_SECOND
    stage.wait(
        lambda: min(len(_starts(stage, name)) for name in PUBLISHERS) >= enough,
        "publishers have been at it for a while",
    )
    excess = max(_worst_excess(_starts(stage, name)) for name in PUBLISHERS)
    stage.prove(
        excess <= 0,
        f"no publisher was asked for more than {BURST} and {RATE_PER_SECOND:g} a second, in any window",
    )
    stage.prove(
        stage.value("select count(*) from outrider.delivery where state not in ('succeeded', 'dead') and "
                    "num_nonnulls(next_attempt_at, lost_after, lease_until) = 0") == 0,
        "what is not delivered yet has a time at which it is looked at",
    )  # fmt: skip


def _release(stage: Stage, assets: int, name: str, *, passes: int = 1) -> list[tuple[dict[str, Any], float]]:
    """That many assets in one commit, and passes at once; each one's answer and its peak of memory."""
    stage.admin.execute(
        "insert into media.happening (publisher_id, asset, kind, version, document) "
        "select 'publisher-' || n %% 8, %s || n, case n %% 2 when 0 then 'transcoded' else 'rights_changed' end, 1, "
        "jsonb_build_object('asset', n, 'note', repeat('x', 1000))::text from generate_series(1, %s) n",
        (f"{name}-", assets),
    )
    processes = [stage.begin(*RECONCILE, group="reconciler") for _ in range(passes)]
    peaks = [0.0] * passes
    # Little is written before the end, so that nobody waits for its reader.
    while any(process.poll() is None for process in processes):
        peaks = [max(peak, _resident_mb(process.pid)) for peak, process in zip(peaks, processes, strict=True)]
        time.sleep(0.02)
    return [(json.loads(process.communicate()[0]), peak) for process, peak in zip(processes, peaks, strict=True)]


def _peak_mb(passes: list[tuple[dict[str, Any], float]]) -> float:
    return max(peak for _, peak in passes)


def _resident_mb(pid: int) -> float:
    """The highest so far; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM")]
    return int(lines[0][1]) / 1024 if lines else 0.0


def _starts(stage: Stage, name: str) -> list[float]:
    return [
        row[0]
        for row in stage.admin.execute(
            "select at from media.start where destination_id = %s order by at", (name,)
        ).fetchall()
    ]


def _worst_excess(starts: list[float]) -> float:
    """Starts above ``burst + rate * t``, in the window where that is most; at most 0 where the limit holds."""
    worst, lowest = float("-inf"), float("inf")
    for number, at in enumerate(starts):
        lowest = min(lowest, number - RATE_PER_SECOND * at)
        allowed = BURST + RATE_PER_SECOND * CLOCK_SECONDS
        worst = max(worst, number + 1 - RATE_PER_SECOND * at - lowest - allowed)
    return worst
