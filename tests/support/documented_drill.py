"""A section of docs/incidents.md as commands, and a shell that runs them with a test's own names filled in."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.settings import environment_of
from tests.support.program import Outrider, Result

PAGE = Path(__file__).resolve().parents[2] / "docs" / "incidents.md"
COMMAND_SECONDS = 120
EXIT_CODE = re.compile(r"# exit code (\d+)")
RUN_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def documented_commands(heading: str) -> list[str]:
    """The commands of all console blocks below the heading, in their order."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert commands, heading
    return commands


@dataclass(slots=True)
class Shell:
    """Runs documented commands in ``folder``, which is this process's too. ``names`` are words of the page -> what
    stands for them here.

    Bash gets what has pipes or files; ``outrider`` alone runs in this process, which spares a start of Python each time.
    """

    folder: Path
    settings: Mapping[str, object]
    outrider: Outrider
    names: dict[str, str] = field(default_factory=dict)

    def run(self, command: str) -> str:
        """Standard output of a command that must end as the page says: with 0, or with its ``# exit code``.

        The run that `replay run` makes stands for RUN from then on.
        """
        here = command
        for word, name in self.names.items():
            here = re.sub(rf"(?<![\w.-]){re.escape(word)}", name, here)
        words = shlex.split(here, comments=True)
        needs_shell = words[0] != "outrider" or not {"|", ">"}.isdisjoint(words)
        done = self._in_bash(here) if needs_shell else self.outrider(*words[1:])
        said = EXIT_CODE.search(command)
        assert done.exit_code == (int(said[1]) if said else 0), f"{here}\n{done.stdout}{done.stderr}"
        if " replay run " in command:
            found = RUN_ID.search(done.stdout)
            assert found is not None, done.stdout
            self.names["RUN"] = found[0]
        return done.stdout

    def _in_bash(self, command: str) -> Result:
        environment = {
            **os.environ,
            **environment_of(self.settings),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        return Result(done.returncode, done.stdout, done.stderr)
