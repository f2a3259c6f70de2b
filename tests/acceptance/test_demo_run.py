"""The demo at a small size, with its kills: on the session's servers, and as the command that people call."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.demo.options import Options
from pipeline.demo.picture import View
from pipeline.demo.report import compare
from pipeline.demo.report_text import as_text
from pipeline.demo.scenario import Scenario
from pipeline.demo.site import SETTINGS, Site
from pipeline.settings import environment_of
from pipeline.stack.component import program
from pipeline.stack.guard import Guard
from tests.fixtures.components import StartComponent

COMMAND_SECONDS = 150


class Silent:
    def note(self, line: str) -> None:
        pass

    def show(self, view: View) -> None:
        pass


@pytest.fixture
def site(
    settings_values: dict[str, object],
    role_dsns: dict[str, str],
    component: StartComponent,
    guard: Guard,
    tmp_path: Path,
) -> Site:
    """All components on the session's servers, with the demo's settings except for names and sizes."""
    settings = {**SETTINGS, **settings_values}
    sizes = {name: value for name, value in SETTINGS.items() if name not in settings_values}
    environment = {**os.environ, **environment_of(settings)}
    subprocess.run(program("topics", "apply"), env=environment, check=True, capture_output=True, timeout=60)
    return Site(
        application_dsn=role_dsns["application"],
        operator_dsn=role_dsns["operator"],
        admin_dsn=str(settings["postgres_dsn"]),
        kafka={"bootstrap.servers": settings["kafka_bootstrap_servers"]},
        dispatch_topic=f"{settings['topic_prefix']}.dispatch",
        attempts_topic=f"{settings['topic_prefix']}.attempts",
        quarantine_topic=f"{settings['topic_prefix']}.quarantine",
        connector=component("connector", **sizes),
        workers=tuple(component("worker", **sizes, worker_id=f"worker-{number}") for number in (2, 3)),
        reconciler=component("reconciler", **sizes),
        folder=tmp_path / "receiver",
        on_start=guard.end,
    )


def test_every_witness_agrees_after_the_kills(site: Site) -> None:
    facts = Scenario(site, Options(events=300), Silent(), time.monotonic()).run()
    report = compare(facts)
    assert report.is_exact, as_text(report)
    assert [kill.component for kill in report.kills][1:] == [site.connector.name]
    assert report.kills[0].component in {worker.name for worker in site.workers}
    assert report.events == 300
    assert report.admitted == report.succeeded + report.dead + report.waiting
    # What went wrong on purpose did go wrong.
    assert min(report.dead, report.waiting, report.receiver_repeats, report.rolled_back, report.readmitted) > 0
    assert report.attempts > report.admitted
    assert report.commit_to_receipt_ms.p50 is not None


def test_the_command_prints_one_object_and_keeps_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        program("demo", "--events", "50", "--destinations", "7", "--json"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["exact"] is True
    assert report["findings"] == []
    for figure in ("lost", "identity_changes", "body_mismatches", "rolled_back_seen", "duplicates_admitted"):
        assert report[figure] == 0
    assert report["admitted"] == report["succeeded"] + report["dead"] + report["waiting"]
    assert set(report["commit_to_receipt_ms"]) == {"p50", "p95", "p99"}
    assert len(report["kills"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_demo_ends_all_its_processes_and_says_where_the_logs_are(tmp_path: Path) -> None:
    process = subprocess.Popen(
        program("demo", "--events", "50"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if " admitting " in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=COMMAND_SECONDS)
    said = "".join(lines) + rest
    assert process.returncode == 130, said
    kept = re.search(r"kept in (\S+)", said)
    assert kept is not None, said
    assert {log.name for log in Path(kept[1], "logs").iterdir()} >= {"kafka.log", "postgres.log", "connector.log"}
    assert not processes_that_mention(str(tmp_path))
    assert [folder for folder in tmp_path.iterdir() if folder != Path(kept[1])] == []


def processes_that_mention(text: str) -> list[str]:
    """Command lines of live processes with `text` in them, or in their working directory."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str((folder / "cwd").readlink())
        except OSError:
            continue
        if folder.name.isdigit() and (text in command or text in where):
            found.append(command)
    return found
