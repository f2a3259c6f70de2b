"""The replication connection: commands, then one stream of messages with feedback.

psycopg has no replication API of its own; its ``pq`` layer is enough. Everything runs in the caller's
thread: :meth:`ReplicationStream.next_buffered` never waits, :meth:`ReplicationStream.wait` does, and
:meth:`ReplicationStream.keep_alive` must be called every few seconds while the caller is busy
elsewhere, or the server ends the connection at its ``wal_sender_timeout``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from connectors.errors import ConfigurationError, SlotActiveError, TransientError, one_line
from connectors.postgres.framing import (
    KEEPALIVE,
    XLOG_DATA,
    XLOG_HEADER_BYTES,
    decode_keepalive,
    encode_status,
)
from connectors.postgres.lsn import format_lsn, parse_lsn
from connectors.postgres.patience import ANSWER_SECONDS_MAX, PatientConnection, next_result
from connectors.postgres.timeline import parse_history

CONNECT_TIMEOUT_SECONDS: Final = 10
STATUS_INTERVAL_SECONDS: Final = 3.0
CONFIRM_INTERVAL_SECONDS: Final = 1.0
SILENCE_MAX_SECONDS: Final = 30.0
SEND_MAX_SECONDS: Final = 30.0
FINISH_SECONDS: Final = 2.0
QUERY_WAIT_SECONDS: Final = 0.5
FAILOVER_SLOTS_VERSION: Final = 170_000

# The text form of values is read back, so it must not depend on the server's or the role's settings.
_SESSION_OPTIONS = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1"
)
# A peer that vanished is noticed by the kernel too, also while nothing is read.
_TCP = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000"}

_LOGIN_REFUSED = ("28000", "28P01", "3D000", "42501")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Which cluster, history and database a connection reaches.

    ``wal_end_lsn`` is the end of the WAL that is safe on disk; ``switches`` tells where each timeline before this one
    was left, see :mod:`connectors.postgres.timeline`.
    """

    system_id: str
    timeline: int
    database: str
    wal_end_lsn: int
    switches: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    consistent_lsn: int
    snapshot_name: str


def connect(conninfo: str, *, replication: bool) -> psycopg.Connection:
    """Open a connection in autocommit mode with the session settings that decoding relies on.

    Raises ConfigurationError where the server refuses the login, TransientError where it cannot be reached.
    """
    given = conninfo_to_dict(conninfo)
    parameters: dict[str, str] = {
        "connect_timeout": str(CONNECT_TIMEOUT_SECONDS),
        "application_name": "outrider connector",
        **_TCP,
        **{name: str(value) for name, value in given.items() if value is not None},
        "options": f"{_SESSION_OPTIONS} {given.get('options') or ''}".strip(),
        "client_encoding": "UTF8",
    }
    if replication:
        parameters["replication"] = "database"
    try:
        return PatientConnection.connect(
            make_conninfo(**parameters), autocommit=True, cursor_factory=psycopg.ClientCursor
        )
    except psycopg.OperationalError as error:
        message = one_line(error)
        if error.sqlstate in _LOGIN_REFUSED or _is_login_refusal(message):
            raise ConfigurationError(f"PostgreSQL refuses the login: {message}") from None
        raise TransientError(f"PostgreSQL cannot be reached: {message}") from None


def _is_login_refusal(message: str) -> bool:
    # While connecting, libpq gives the server's words but not its SQLSTATE.
    refusals = ("authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied", "no password")
    return any(refusal in message for refusal in refusals)


class ReplicationConnection:
    """A walsender session before streaming. It also runs plain SQL, in the simple protocol."""

    def __init__(self, conninfo: str) -> None:
        self.connection = connect(conninfo, replication=True)

    def close(self) -> None:
        self.connection.close()

    def identify(self) -> ServerIdentity:
        row = self.connection.execute("IDENTIFY_SYSTEM").fetchone()
        if row is None:
            raise TransientError("PostgreSQL did not answer IDENTIFY_SYSTEM")
        timeline = int(row[1])
        return ServerIdentity(
            system_id=str(row[0]),
            timeline=timeline,
            database=str(row[3]),
            wal_end_lsn=parse_lsn(str(row[2])),
            switches=self._switches(timeline),
        )

    def _switches(self, timeline: int) -> dict[int, int]:
        if timeline == 1:
            return {}
        try:
            row = self.connection.execute(sql.SQL("TIMELINE_HISTORY {}").format(sql.Literal(timeline))).fetchone()
        except psycopg.errors.UndefinedFile:
            # Somebody tidied up: then nothing says that an older position is still part of this history.
            return {}
        content = b"" if row is None else row[1]
        return parse_history(content if isinstance(content, str) else bytes(content).decode(errors="replace"))

    def create_slot(self, slot: str, while_waiting: Callable[[], None]) -> CreatedSlot:
        """Create a logical slot; its snapshot can be imported until the next command here.

        Where the server can copy slots to its standbys, this one takes part. PostgreSQL answers once every
        transaction that is open now has ended, however long that takes.
        """
        failover = ", FAILOVER true" if self.connection.info.server_version >= FAILOVER_SLOTS_VERSION else ""
        command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export'{})").format(
            sql.Identifier(slot), sql.SQL(failover)
        )
        result = self._query(command.as_bytes(self.connection), while_waiting)
        if result.status != ExecStatus.TUPLES_OK:
            raise _create_error(slot, result)
        consistent_lsn, snapshot_name = (result.get_value(0, column) or b"" for column in (1, 2))
        return CreatedSlot(parse_lsn(consistent_lsn.decode()), snapshot_name.decode())

    def _query(self, command: bytes, while_waiting: Callable[[], None]) -> PGresult:
        """Run a command that may take long; the caller does its duties meanwhile."""
        pgconn = self.connection.pgconn
        pgconn.send_query(command)
        poller = select.poll()
        poller.register(pgconn.socket, select.POLLIN)
        while pgconn.is_busy():
            if not poller.poll(QUERY_WAIT_SECONDS * 1000):
                while_waiting()
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            raise TransientError("PostgreSQL gave no answer")
        # A stream that has begun is told of again and again.
        while result.status != ExecStatus.COPY_BOTH and next_result(pgconn) is not None:
            pass
        return result

    def drop_slot(self, slot: str, while_waiting: Callable[[], None]) -> None:
        """Drop it, or find that it is gone. A connection that reads it is waited for."""
        command = sql.SQL("DROP_REPLICATION_SLOT {} WAIT").format(sql.Identifier(slot))
        result = self._query(command.as_bytes(self.connection), while_waiting)
        sqlstate, message = _sqlstate_and_message(result)
        if result.status != ExecStatus.COMMAND_OK and sqlstate != "42704":
            raise TransientError(f"slot {slot} could not be dropped: {message}")

    def start(self, slot: str, publication: str, *, from_lsn: int, binary: bool) -> ReplicationStream:
        """Begin to stream; this object must not be used afterwards.

        ``from_lsn`` 0 starts where the slot was last confirmed. Raises SlotActiveError while another
        connection reads the slot.
        """
        command = sql.SQL(
            "START_REPLICATION SLOT {slot} LOGICAL {lsn} (proto_version '1', publication_names {names},"
            " binary {binary}, messages 'false')"
        ).format(
            slot=sql.Identifier(slot),
            lsn=sql.SQL(format_lsn(from_lsn)),  # digits and one slash
            names=sql.Literal(sql.Identifier(publication).as_string(self.connection)),
            binary=sql.Literal("true" if binary else "false"),
        )
        interval_seconds, silence_seconds_max = self._patience()
        result = self._query(command.as_bytes(self.connection), _impatience("START_REPLICATION"))
        if result.status != ExecStatus.COPY_BOTH:
            raise _start_error(slot, result)
        return ReplicationStream(self.connection, interval_seconds, silence_seconds_max)

    def _patience(self) -> tuple[float, float]:
        """(seconds between our questions, of silence that we bear): several of the former within the server's own
        patience, and of the latter no more than the server bears, which may be set shorter than its default minute.
        """
        row = self.connection.execute(
            "select setting::integer from pg_settings where name = 'wal_sender_timeout'"
        ).fetchone()
        timeout_ms = int(row[0]) if row is not None else 0
        if timeout_ms <= 0:
            return STATUS_INTERVAL_SECONDS, SILENCE_MAX_SECONDS
        return min(STATUS_INTERVAL_SECONDS, timeout_ms / 4000), min(SILENCE_MAX_SECONDS, timeout_ms / 1000)


def _impatience(command: str) -> Callable[[], None]:
    """For a command that is answered at once by a server that answers at all."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX

    def check() -> None:
        if time.monotonic() > deadline:
            raise TransientError(f"PostgreSQL has not answered {command} for {ANSWER_SECONDS_MAX:g} s")

    return check


def _create_error(slot: str, result: PGresult) -> Exception:
    sqlstate, message = _sqlstate_and_message(result)
    if sqlstate == "42710":
        return SlotActiveError(f"slot {slot} was made by another connector at the same time")
    if sqlstate == "53400":
        return ConfigurationError(
            f"PostgreSQL has no room for slot {slot} ({message}): drop an unused slot or raise max_replication_slots"
        )
    if sqlstate == "42501":
        return ConfigurationError(f"the role may not create a slot ({message}): alter role ... replication")
    return TransientError(f"slot {slot} could not be created: {message}")


def _sqlstate_and_message(result: PGresult) -> tuple[str, str]:
    sqlstate = result.error_field(DiagnosticField.SQLSTATE) or b""
    message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"unknown error"
    return sqlstate.decode(), one_line(message.decode(errors="replace"))


def _start_error(slot: str, result: PGresult) -> Exception:
    sqlstate, message = _sqlstate_and_message(result)
    if sqlstate == "55006":
        return SlotActiveError(message)
    if sqlstate == "42501":
        return ConfigurationError(f"the role may not stream ({message}): alter role ... replication")
    return TransientError(f"PostgreSQL does not stream from slot {slot}: {message}")


class ReplicationStream:
    """Messages of one slot in commit order, and the feedback that lets the server forget them."""

    def __init__(
        self, connection: psycopg.Connection, status_interval_seconds: float, silence_seconds_max: float
    ) -> None:
        self._connection = connection
        self._status_interval_seconds = status_interval_seconds
        self._silence_seconds_max = silence_seconds_max
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._get_copy_data = self._pgconn.get_copy_data
        self._confirmed_lsn = 0
        self._sent_lsn = 0
        self._sent_at = time.monotonic()
        self.silent_since: float | None = None
        """Since when we wait for anything at all from the server, by time.monotonic()."""
        self.server_lsn = 0
        """End of the WAL that the server says it has sent, by its last keepalive."""
        self.server_time_us = 0
        """The server's clock in that keepalive, in microseconds since 2000."""

    def close(self) -> None:
        """Hang up. What was confirmed but not sent yet is sent again by the server, and skipped by position."""
        self._connection.close()

    def finish(self) -> None:
        """Send the last confirmation and end the stream in good order, so that the slot is free at once."""
        self._send_status(ask_reply=False)
        deadline = time.monotonic() + FINISH_SECONDS
        try:
            while self._pgconn.put_copy_end() == 0:
                self._wait_to_send(deadline)
            while self._pgconn.flush() == 1:
                self._wait_to_send(deadline)
            while (size := self._pgconn.get_copy_data(1)[0]) >= 0 and time.monotonic() < deadline:
                if size == 0:
                    self.wait(FINISH_SECONDS / 10)
                    self._pgconn.consume_input()
        except (psycopg.Error, TransientError):
            pass  # the server notices that the connection is gone; nothing is lost by it

    def next_buffered(self) -> bytes | None:
        """The next XLogData message with its header, or None where no whole one has arrived.

        Never waits. Raises TransientError where the connection or the stream has ended.
        """
        fetched = False
        try:
            while True:
                size, view = self._get_copy_data(1)
                if size > 0:
                    data = bytes(view)
                    kind = data[0]
                    if kind == XLOG_DATA and size > XLOG_HEADER_BYTES:
                        return data
                    if kind != KEEPALIVE:
                        raise TransientError(f"PostgreSQL sent a message that is none: {data[:30]!r}")
                    self._on_keepalive(data)
                    continue
                if size < 0:
                    raise self._ended()
                if fetched:
                    return None
                self._pgconn.consume_input()
                fetched = True
        except psycopg.Error as error:
            raise TransientError(f"the connection to PostgreSQL was lost: {one_line(error)}") from None

    def wait(self, seconds: float, *others: int) -> None:
        """Wait until data arrives, one of the other file descriptors is readable, or the time is over.

        Raises TransientError where the server has been silent for too long although it was asked.
        """
        poller = select.poll()
        poller.register(self._pgconn.socket, select.POLLIN)
        for other in others:
            poller.register(other, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(seconds * 1000)}
        now = time.monotonic()
        if self._pgconn.socket in ready:
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = now
        elif now - self.silent_since > self._silence_seconds_max:
            raise TransientError(f"PostgreSQL has been silent for {now - self.silent_since:.0f} s")
        self.keep_alive()

    def keep_alive(self) -> None:
        """Send a status update if one is due. Call it at least every few seconds."""
        if time.monotonic() - self._sent_at >= self._status_interval_seconds:
            self._send_status(ask_reply=True)

    def busy_elsewhere(self) -> None:
        """Like keep_alive, for a caller that does not read at this time: silence proves nothing then."""
        self.silent_since = None
        self.keep_alive()

    def confirm(self, lsn: int, *, now: bool = False) -> None:
        """Everything before ``lsn`` is safe elsewhere. Sent at once if asked, else within a second or so."""
        if lsn < self._confirmed_lsn:
            raise ValueError(f"{format_lsn(lsn)} is behind what was confirmed, {format_lsn(self._confirmed_lsn)}")
        self._confirmed_lsn = lsn
        if now or time.monotonic() - self._sent_at >= CONFIRM_INTERVAL_SECONDS:
            self._send_status(ask_reply=False)

    @property
    def has_unsent_confirmation(self) -> bool:
        return self._confirmed_lsn > self._sent_lsn

    def _on_keepalive(self, data: bytes) -> None:
        try:
            self.server_lsn, self.server_time_us, reply = decode_keepalive(data)
        except ValueError as error:
            raise TransientError(str(error)) from None
        if reply:
            self._send_status(ask_reply=False)

    def _ended(self) -> TransientError:
        result = self._pgconn.get_result()
        if result is None or result.status != ExecStatus.FATAL_ERROR:
            return TransientError("PostgreSQL ended the stream")
        return TransientError(f"PostgreSQL ended the stream: {_sqlstate_and_message(result)[1]}")

    def _send_status(self, *, ask_reply: bool) -> None:
        status = encode_status(self._confirmed_lsn, unix_seconds=time.time(), ask_reply=ask_reply)
        deadline = time.monotonic() + SEND_MAX_SECONDS
        try:
            while self._pgconn.put_copy_data(status) == 0:
                self._wait_to_send(deadline)
            while self._pgconn.flush() == 1:
                self._wait_to_send(deadline)
        except psycopg.Error as error:
            raise TransientError(f"the connection to PostgreSQL was lost: {one_line(error)}") from None
        self._sent_at = time.monotonic()
        self._sent_lsn = self._confirmed_lsn

    def _wait_to_send(self, deadline: float) -> None:
        """The server may have to be read from before it takes more: wait for either way."""
        if time.monotonic() > deadline:
            raise TransientError(f"PostgreSQL has taken no feedback for {SEND_MAX_SECONDS:.0f} s")
        poller = select.poll()
        poller.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)
        for _, event in poller.poll(1000):
            if event & select.POLLIN:
                self._pgconn.consume_input()
