"""What core computes or lists, the database computes or lists alike."""

from __future__ import annotations

import re

import psycopg

from pipeline.core.ids import delivery_identity, message_identity
from pipeline.core.lifecycle import State


def test_identities_equal_those_of_the_database(database):
    pairs = [("e", "d"), ("a:b", "c"), ("a", "b:c"), ("żółć", "受信"), ("x" * 500, "y" * 200), ("tab\t", "line\n")]
    with psycopg.connect(database) as connection:
        for event_id, destination_id in pairs:
            delivery_id = delivery_identity(event_id, destination_id)
            row = connection.execute(
                "select outrider.delivery_identity(%s, %s), outrider.message_identity(%s, %s)",
                (event_id, destination_id, delivery_id, 7),
            ).fetchone()
            assert row == (delivery_id, message_identity(delivery_id, 7))


def test_the_ledger_has_the_same_states(database):
    with psycopg.connect(database) as connection:
        (definition,) = connection.execute(
            "select pg_get_constraintdef(oid) from pg_constraint "
            "where conrelid = 'outrider.delivery'::regclass and conname = 'delivery_state_check'"
        ).fetchone()
    assert set(re.findall(r"'([a-z]+)'", definition)) == set(State)
