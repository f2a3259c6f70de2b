"""Common ways of every Kafka client here: quiet, bounded, and able to say why the brokers do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from connectors.errors import ConfigurationError, ConnectorError, KafkaUnavailableError, MissingTopicError, one_line

_ask_headers = methodcaller("headers")

ADMIN_TIMEOUT_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 0.5

NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_LOGIN_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL})


class ClientErrors:
    """Collects what a client reports by its callbacks, which its calls do not return.

    An object of its own, so that no client is part of a reference cycle: each is gone with its threads and
    sockets as soon as nobody uses it.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self._login: KafkaError | None = None
        self.first_refused: KafkaError | None = None
        """Why the first record that was not delivered was not."""

    def __call__(self, error: KafkaError) -> None:
        if error.code() in _LOGIN_REFUSED:
            self._login = error
        self._last = error

    def on_delivery(self, error: KafkaError | None, _: object) -> None:
        # Records that were thrown away because another was refused say nothing of the cause.
        if error is not None and self.first_refused is None and error.code() not in _PURGED:
            self.first_refused = error

    def configure(self, kafka: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """A client's configuration; its own log lines are off, because this object reports the errors."""
        return {**kafka, "log_level": 2, "error_cb": self, **more}

    def configure_reader(self, kafka: Mapping[str, Any], topic: str, **more: Any) -> dict[str, Any]:
        """Of a consumer that reads committed records in no group, and says where they end."""
        return self.configure(
            kafka,
            **{
                # Needed by the client, never used: offsets are neither stored nor committed.
                "group.id": f"{topic}.reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                # A client whose room is full would otherwise not ask again for a whole second.
                "fetch.queue.backoff.ms": 5,
                "auto.offset.reset": "earliest",
                **more,
            },
        )

    def explain(self, what: str, error: KafkaError | None) -> ConnectorError:
        """The error to raise after a call failed with ``error`` (None: it got no answer)."""
        if self._login is not None:
            return ConfigurationError(f"Kafka refuses the connection: {one_line(self._login.str())}")
        if error is not None and error.code() in NOT_ALLOWED:
            return ConfigurationError(f"Kafka does not allow the connector to {what}: {one_line(error.str())}")
        if error is not None and error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return ConfigurationError(
                "the brokers' transaction.max.timeout.ms is shorter than the connector's transactions may take"
            )
        causes = [cause for cause in (error, self._last) if cause is not None]
        texts = dict.fromkeys(one_line(cause.str()) for cause in causes)
        return KafkaUnavailableError(f"Kafka did not {what}: {'; '.join(texts) or 'no answer'}")


def kafka_error(exception: KafkaException) -> KafkaError:
    """The error inside the exception."""
    error: KafkaError = exception.args[0]
    return error


def headers_of(message: Message) -> dict[str, bytes | None]:
    """By name; of one that is repeated, the last counts. Empty where a name is no text: nothing of ours is like that.

    The client then returns a list with holes and leaves its exception behind. CPython calls a method directly once its
    line is hot, and does not look for one; called from C it does. topics/message_headers.py does so for other readers.
    """
    try:
        found: Any = _ask_headers(message) or ()
    except SystemError:
        return {}
    return dict(found)


class TopicQuestions:
    """An admin client, and what its answers about topics mean here."""

    def __init__(self, kafka: Mapping[str, Any], while_waiting: Callable[[], None]) -> None:
        self.errors = ClientErrors()
        self.admin = AdminClient(self.errors.configure(kafka))
        self._while_waiting = while_waiting

    def answer(self, future: Future[Any], topic: str, what: str) -> Any:
        """A call's result; ``what`` is what the brokers were asked to do with the topic.

        Raises MissingTopicError, ConfigurationError where they refuse, TransientError where they do not answer.
        """
        try:
            return admin_result(future, self._while_waiting)
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise MissingTopicError(topic) from None
            # Lets the client tell what it knows of the connection.
            self.admin.poll(0)
            raise self.errors.explain(f"{what} topic {topic}", error) from None
        except TimeoutError:
            raise self.errors.explain(f"{what} topic {topic}", None) from None


def admin_result(future: Future[Any], while_waiting: Callable[[], None]) -> Any:
    """An admin call's result; the caller does its duties meanwhile. Raises KafkaException or TimeoutError."""
    deadline = time.monotonic() + ADMIN_TIMEOUT_SECONDS + 1
    while True:
        try:
            return future.result(timeout=WAIT_SECONDS)
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
            while_waiting()
