"""Who holds a lease is one process, whatever name it was given."""

from __future__ import annotations

from pipeline.delivery.worker import Worker
from pipeline.settings import load_settings


def test_two_processes_under_one_name_are_two_owners():
    settings = load_settings(worker_id="w1")
    first, second = Worker(settings).worker_id, Worker(settings).worker_id
    assert first != second
    assert {first.partition(".")[0], second.partition(".")[0]} == {"w1"}
