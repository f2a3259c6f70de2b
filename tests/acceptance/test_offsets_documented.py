"""The commands in the section on offsets of docs/operations.md, run in their order as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pipeline.settings import environment_of
from tests.support.offsets_world import OffsetsWorld

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
COMMAND_SECONDS = 120


def documented_commands() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").split("\n## Consumer offsets\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def test_the_documented_commands_do_what_they_say(
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
    bootstrap_servers: str,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    world = OffsetsWorld(bootstrap_servers, topic_prefix)
    topic = world.create_topic(name=f"{topic_prefix}.attempts", partitions=2)
    group = f"{topic_prefix}-reporting"
    world.produce(10, topic=topic)
    world.commit(6, 0, group=group, topic=topic)
    before = world.committed(group)
    environment = {
        **os.environ,
        **environment_of({**settings_values, "postgres_dsn": role_dsns["operator"]}),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    run_id = "none yet"

    def run(command: str) -> str:
        """In a shell, with the names of this test in place of those on the page."""
        here = re.sub(r"\boutrider\.(?=\w)", f"{topic_prefix}.", command)
        here = re.sub(r"\breporting\b", group, here)
        done = subprocess.run(
            ["bash", "-c", re.sub(r"\bRUN\b", run_id, here)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    commands = documented_commands()
    assert [" ".join(command.split()[1:3]) for command in commands] == [
        "offsets show",
        "offsets plan",
        "offsets apply",
        "runs list",
        "runs show",
        "offsets undo",
        "offsets show",
        "offsets plan",
    ]
    for command in commands:
        output = run(command)
        if " offsets apply " in command:
            found = re.search(r"run ([0-9a-f-]{36})", output)
            assert found is not None, output
            run_id = found[1]
            assert world.committed(group) == {(topic, 0): 0, (topic, 1): 0}
    assert world.committed(group) == before
    assert (
        (tmp_path / "targets.csv").read_text() == (tmp_path / "before.csv").read_text() == f"{topic},0,6\n{topic},1,0\n"
    )
