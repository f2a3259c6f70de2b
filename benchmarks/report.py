"""The one form in which every benchmark reports: what was measured, on what, and which goals were met."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with the bound that it is held to, such as ``">= 0.5"``."""

    name: str
    value: float
    unit: str
    goal: str
    met: bool

    @classmethod
    def at_least(cls, name: str, value: float, unit: str, bound: float) -> Goal:
        return cls(name, value, unit, f">= {bound:g}", value >= bound)

    @classmethod
    def at_most(cls, name: str, value: float, unit: str, bound: float) -> Goal:
        return cls(name, value, unit, f"<= {bound:g}", value <= bound)


def machine() -> dict[str, Any]:
    """What the figures were measured on. A load above the number of CPUs at the start spoils them."""
    memory = [line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")]
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "cpus": os.cpu_count(),
        "cpu": models[0] if models else platform.machine(),
        "memory_mib": int(memory[0]) // 1024 if memory else None,
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def show(name: str, machine: dict[str, Any], figures: dict[str, Any], goals: list[Goal], *, as_json: bool) -> int:
    """Print the report; with ``as_json`` one object as the last line. Returns the exit code: 1 if a goal is missed."""
    if as_json:
        report = {"name": name, "machine": machine, "figures": figures, "goals": [asdict(goal) for goal in goals]}
        print(json.dumps(report), flush=True)
    else:
        print(f"{name} on {machine['cpus']} CPUs ({machine['cpu']}), load {machine['load_at_start']} at the start")
        for figure, value in figures.items():
            print(f"  {figure}: {value}")
        for goal in goals:
            print(f"  {'met   ' if goal.met else 'MISSED'} {goal.name}: {goal.value:g} {goal.unit} (goal {goal.goal})")
    return 0 if all(goal.met for goal in goals) else 1
