"""A dispatch may reach the worker before its commit is visible: PostgreSQL streams a commit when it is flushed, and shows
it to other sessions a moment later."""

from __future__ import annotations

from contextlib import contextmanager
from urllib.request import urlopen

import psycopg
import pytest

from pipeline.stack.ports import free_ports
from tests.support.delivery_world import Reply, World, opened, wait_until


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


@contextmanager
def published_before_its_commit(world: World, database: str, asked_early):
    """A transaction whose outbox rows are published inside it; it commits when the worker has asked for them."""
    before = asked_early()
    with psycopg.connect(database) as session, session.transaction():
        yield session
        world.publish_ahead(session)
        wait_until(lambda: asked_early() > before, "the worker asks for what it cannot see yet")


def test_a_dispatch_ahead_of_its_commit_is_delivered_and_not_put_away(world, component, database):
    world.add_destination("a", retry_first_delay_seconds=0.01, retry_max_delay_seconds=0.01)
    (health_port,) = free_ports(1)
    component("worker", health_port=health_port)

    def asked_early() -> float:
        try:
            text = urlopen(f"http://127.0.0.1:{health_port}/metrics", timeout=10).read().decode()
        except OSError:
            return 0.0
        lines = [line for line in text.splitlines() if 'refused_total{verdict="early"}' in line]
        return float(lines[0].split()[-1]) if lines else 0.0

    # A first dispatch: the ledger shows no such delivery yet.
    replies = [Reply(503), Reply(200)]
    world.receiver.reply = lambda received: replies[len(world.receiver.received) - 1]
    with published_before_its_commit(world, database, asked_early) as session:
        session.execute("select outrider.admit('e', 'test.happened', 'body', destinations => array['a'])")
    wait_until(lambda: world.states() == {"pending": 1}, "the first attempt is settled")

    # A later one: the ledger still shows the delivery under the number before.
    with published_before_its_commit(world, database, asked_early) as session:
        world.enqueue_pending(session)
    wait_until(lambda: world.states() == {"succeeded": 1}, "the second attempt is settled")

    assert [r.headers["outrider-attempt"] for r in world.receiver.received] == ["1", "2"]
    assert world.records(world.quarantine) == []
