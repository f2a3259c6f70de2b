"""The loop: rows from PostgreSQL's stream into Kafka transactions, and what to do when either side fails.

A session runs from taking the slot to losing it, in this order:

1. take the slot, which only one connection can read: another connector waits here as a standby;
2. fence the transactional id, so that nothing of an older connector can still be committed;
3. read the stored position, which is final now, and decide how to start;
4. stream: rows and their position go into Kafka transactions; PostgreSQL is told to forget only what
   a committed position covers.

Any failure ends the session, and the next one begins at 1 after a pause. Nothing is carried over in
memory, so there is one way to recover, whatever failed: an error, a lost connection, or a crash.
"""

from __future__ import annotations

import random
from typing import Final

import psycopg
import structlog
from confluent_kafka import KafkaException

from connectors.config import ConnectorConfig
from connectors.errors import (
    ConfigurationError,
    ConnectorError,
    KafkaUnavailableError,
    SlotActiveError,
    TransientError,
    cause_of,
    one_line,
)
from connectors.kafka.client import kafka_error
from connectors.postgres.lsn import format_lsn
from connectors.postgres.pgoutput import DecodeError
from connectors.router import RouteError, Router, TextFormNeededError
from connectors.session import Session, StoppedError
from connectors.status import ConnectorStatus, State
from connectors.stop import StopSignal

_log = structlog.get_logger(__name__)

BACKOFF_FIRST_SECONDS: Final = 0.1
SLOT_PAUSE_SECONDS: Final = 0.5


class Connector:
    """One connector, run by the thread that calls :meth:`run`."""

    def __init__(self, config: ConnectorConfig, stop: StopSignal, status: ConnectorStatus | None = None) -> None:
        self._config = config
        self._stop = stop
        self.status = ConnectorStatus() if status is None else status
        self._router = Router(config.routes)
        self._binary = True
        self._has_streamed = False

    def run(self) -> None:
        """Stream until the stop signal is set; the open transaction is finished first.

        Raises ConfigurationError where the first session cannot begin for a reason that time does not mend.
        After rows have flowed once, every failure is tried again, with pauses up to ``backoff_max_seconds``.
        """
        pause = BACKOFF_FIRST_SECONDS
        while not self._stop.is_set():
            transactions = self.status.transactions
            try:
                self._session()
            except StoppedError:
                break
            except TextFormNeededError as error:
                _log.info("a type has no known binary form, the stream will send text", table=str(error))
                self._binary = False
            except SlotActiveError as error:
                # A standby looks often: it is to take over within moments.
                self._note("waiting for slot", error)
                self._stop.wait(SLOT_PAUSE_SECONDS)
            except ConnectorError as error:
                if isinstance(error, ConfigurationError) and not self._has_streamed:
                    raise
                if self.status.transactions > transactions:
                    pause = BACKOFF_FIRST_SECONDS
                self._note("reconnecting", error)
                self.status.failure = self.status.reason
                self.status.reconnects += 1
                self.status.reconnect_causes[cause_of(error)] += 1
                self._stop.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads retries, guards nothing
                pause = min(pause * 2, self._config.backoff_max_seconds)
        self.status.enter("stopped")

    def _note(self, state: State, error: ConnectorError) -> None:
        reason = one_line(error)
        if self.status.reason != reason:
            lsn = format_lsn(self.status.last_lsn)
            _log.warning("no rows flow", state=state, reason=reason, lsn=lsn, xid=self.status.xid)
        self.status.enter(state, reason)

    def _session(self) -> None:
        try:
            with Session(self._config, self._router, self._stop, self.status, binary=self._binary) as session:
                session.run()
        except psycopg.Error as error:
            raise TransientError(f"PostgreSQL: {one_line(error)}") from None
        except KafkaException as error:
            raise KafkaUnavailableError(f"Kafka: {one_line(kafka_error(error).str())}") from None
        except DecodeError as error:
            raise TransientError(f"the stream cannot be understood: {error}") from None
        except RouteError as error:
            raise ConfigurationError(one_line(error)) from None
        finally:
            self._has_streamed = self._has_streamed or self.status.state == "streaming"
