"""The control topic from an operator's side: what it says now, and a word added to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from connectors.control import ControlState, ControlValue, Subject, encode_subject, encode_value
from connectors.errors import TransientError
from connectors.kafka.log_reader import LogReader
from connectors.kafka.one_record import send_record
from connectors.router import Record

READ_SECONDS: Final = 60.0


def read_control(kafka: Mapping[str, Any], topic: str, database: str, slot: str) -> ControlState:
    """What is asked of the connector of that slot, and what it holds. Raises ControlError, and what LogReader does."""
    state = ControlState(database, slot)
    with LogReader(kafka, topic, lambda: None) as reader:
        for message in reader.read_to_end(READ_SECONDS):
            state.apply(message.key(), message.value())
    return state


def write_control(kafka: Mapping[str, Any], topic: str, subject: Subject, value: ControlValue | None) -> None:
    """Add one record, which needs no transaction: it is there, whole, when this returns.

    Raises what send_record does.
    """
    send_record(kafka, Record(topic, encode_subject(subject), None if value is None else encode_value(value), []))


def wait_for_answer(
    kafka: Mapping[str, Any], topic: str, state: ControlState, release_id: str, deadline_seconds: float
) -> ControlState:
    """Follow the topic until the release is answered or the time is over; what it says then.

    ``state`` says whose records count, and takes them in. Raises what read_control does.
    """
    deadline = time.monotonic() + deadline_seconds
    with LogReader(kafka, topic, lambda: None) as reader:
        try:
            for message in reader.read_to_end(READ_SECONDS):
                state.apply(message.key(), message.value())
        except TransientError:
            return state
        while release_id in state.open_releases and time.monotonic() < deadline:
            for message in reader.poll(0.2):
                state.apply(message.key(), message.value())
    return state
