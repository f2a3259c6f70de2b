"""What operators have asked for, during one session of a connector: rest, release, hold. See :mod:`connectors.control`."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import structlog

from connectors.config import ConnectorConfig
from connectors.control import ControlError, ControlState
from connectors.errors import ConfigurationError
from connectors.holding import Holding
from connectors.kafka.log_reader import LogReader
from connectors.postgres.replication import ReplicationStream
from connectors.status import ConnectorStatus
from connectors.stop import StopSignal

_log = structlog.get_logger(__name__)

READ_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
PAUSE_LOOK_SECONDS: Final = 0.2


class RestWantedError(Exception):
    """The connector is to rest, in the middle of what takes long: the next session begins by it."""


class ControlSession:
    """Reads the control topic to its end, once the session is fenced, and then looks into it every second.

    A wish that changes what the connector does ends the streaming; the session that follows begins by it, and so
    needs no care for what is open. Use it with ``with``.
    """

    def __init__(
        self, config: ConnectorConfig, database: str, status: ConnectorStatus, while_waiting: Callable[[], None]
    ) -> None:
        self._config = config
        self._status = status
        self._state = ControlState(database, config.slot)
        self._reader = LogReader(config.kafka, config.control_topic, while_waiting)
        self._look_due = 0.0
        self._database = database

    def __enter__(self) -> Self:
        for message in self._reader.read_to_end(READ_SECONDS):
            self._apply(message.key(), message.value())
        config = self._config
        # A copy: what this session holds and frees comes back from the topic later, and is no news then.
        held = dict(self._state.held)
        self.holding = Holding(config.control_topic, self._database, config.slot, held, config.held_keys_max)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    @property
    def state(self) -> ControlState:
        return self._state

    def wants_otherwise(self) -> bool:
        """Whether the connector is to do something else than stream. Cheap: it looks once in LOOK_SECONDS."""
        return self._has_looked() and (self._state.is_paused or bool(self._state.open_releases))

    def check_rest(self) -> None:
        """Raises RestWantedError where the connector is to rest. Cheap, as above."""
        if self._has_looked() and self._state.is_paused:
            raise RestWantedError

    def rest(self, stream: ReplicationStream | None, stop: StopSignal) -> None:
        """Return when the connector is not paused any more, or the stop signal is set.

        Nothing is read from the stream meanwhile and nothing confirmed, but it is kept alive. Raises TransientError
        where a side fails.
        """
        pause = self._state.pause
        if pause is None or not pause.is_paused:
            return
        why = f"by {pause.operator} at {pause.at}: {pause.reason}"
        self._status.enter("paused", why)
        _log.warning("paused", operator=pause.operator, reason=pause.reason, since=pause.at)
        while self._state.is_paused and not stop.wait(PAUSE_LOOK_SECONDS):
            if stream is not None:
                stream.busy_elsewhere()
            self._look()
        if not self._state.is_paused:
            _log.info("resumed", operator=self._state.pause and self._state.pause.operator)
            self._status.enter("starting", "resumed")

    def _has_looked(self) -> bool:
        now = time.monotonic()
        if now < self._look_due:
            return False
        self._look_due = now + LOOK_SECONDS
        self._look()
        return True

    def _look(self) -> None:
        for message in self._reader.poll():
            self._apply(message.key(), message.value())

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        try:
            self._state.apply(key, value)
        except ControlError as error:
            raise ConfigurationError(f"topic {self._config.control_topic}: {error}") from None
