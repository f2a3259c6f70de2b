"""The stage of the examples on a test's own database and topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg

from examples.receiver import Receiver
from examples.stage import HURRIED, Stage, StartComponent, make_topics
from tests.support.connector_world import read_committed
from topics.contract import KINDS


@contextmanager
def stage_of(
    settings_values: Mapping[str, object],
    role_dsns: Mapping[str, str],
    component: StartComponent,
    *,
    sources: Path,
    proved: list[str],
) -> Iterator[Stage]:
    """Components start under the test's fixture, which ends them. What is proved goes into ``proved``."""
    settings = {**settings_values, **HURRIED, "sources_directory": sources}
    make_topics(settings)
    receiver = Receiver()
    try:
        with psycopg.connect(str(settings["postgres_dsn"]), autocommit=True) as admin:
            yield Stage(
                admin=admin,
                admin_dsn=str(settings["postgres_dsn"]),
                dsns=role_dsns,
                settings=settings,
                start=lambda name, **more: component(name, **{**HURRIED, "sources_directory": sources, **more}),
                receiver=receiver,
                say=proved.append,
            )
    finally:
        receiver.close()


def assert_contracts_hold(settings_values: Mapping[str, object]) -> dict[str, int]:
    """Every record of every topic fits its contract; how many there are, by topic."""
    prefix, servers = settings_values["topic_prefix"], str(settings_values["kafka_bootstrap_servers"])
    return {topic: len(read_committed(servers, f"{prefix}.{topic}")) for topic in KINDS}
