"""One table from what happened on the wire to what it means.

=================== ============================= ======= ========== ==============
outcome             what happened                 verdict ambiguous  waiting reason
=================== ============================= ======= ========== ==============
success             2xx                           success -          -
redirect            3xx, never followed           retry   no         retry
throttled           429, 503                      retry   no         throttled
throttled           502, 504                      retry   yes        throttled
unauthorized        401, 403                      retry   no         retry
retryable           408, 425                      retry   no         retry
gone                410                           dead    no         -
rejected            any other 4xx                 dead    no         -
server_error        any other 5xx                 retry   yes        retry
invalid_answer      not an HTTP answer            retry   yes        retry
connection_lost     after the request was begun   retry   yes        retry
timeout_after_sent  deadline, after it was begun  retry   yes        retry
timeout_before_sent deadline, before              retry   no         retry
dns_failed          no address for the name       retry   no         retry
connect_failed      refused, unreachable, dropped retry   no         retry
tls_failed          handshake or certificate      retry   no         retry
target_refused      address that is not allowed   retry   no         retry
not_sent            the lease left no time        retry   no         retry
=================== ============================= ======= ========== ==============

Ambiguous: the receiver may have applied the event although no success was seen; no sender can tell. A gateway's
502 or 504 hides what the server behind it did, and a 500 may come after the commit; 429 and 503 say that the request
was not taken on. A target that is not allowed is a setting to mend, so it does not kill deliveries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    SUCCESS = "success"
    RETRY = "retry"
    DEAD = "dead"


class Outcome(StrEnum):
    """Outcome class: bounded in number, so that it may label a metric."""

    SUCCESS = "success"
    REDIRECT = "redirect"
    THROTTLED = "throttled"
    UNAUTHORIZED = "unauthorized"
    RETRYABLE = "retryable"
    GONE = "gone"
    REJECTED = "rejected"
    SERVER_ERROR = "server_error"
    INVALID_ANSWER = "invalid_answer"
    CONNECTION_LOST = "connection_lost"
    TIMEOUT_AFTER_SENT = "timeout_after_sent"
    TIMEOUT_BEFORE_SENT = "timeout_before_sent"
    DNS_FAILED = "dns_failed"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    TARGET_REFUSED = "target_refused"
    NOT_SENT = "not_sent"


class Failure(StrEnum):
    """How a request ended that got no status."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    TARGET_REFUSED = "target_refused"
    TIMEOUT = "timeout"
    CONNECTION_LOST = "connection_lost"
    INVALID_ANSWER = "invalid_answer"
    NOT_SENT = "not_sent"


@dataclass(frozen=True, slots=True)
class Classification:
    """A line of the table. ``ambiguous``: the receiver may have applied the event although no success was seen."""

    outcome: Outcome
    verdict: Verdict
    ambiguous: bool

    @property
    def waiting_reason(self) -> str | None:
        """Why the delivery waits when it is tried again."""
        if self.verdict is not Verdict.RETRY:
            return None
        return "throttled" if self.outcome is Outcome.THROTTLED else "retry"


def _retry(outcome: Outcome, *, ambiguous: bool) -> Classification:
    return Classification(outcome, Verdict.RETRY, ambiguous)


_SUCCESS = Classification(Outcome.SUCCESS, Verdict.SUCCESS, ambiguous=False)
_REDIRECT = _retry(Outcome.REDIRECT, ambiguous=False)
_REJECTED = Classification(Outcome.REJECTED, Verdict.DEAD, ambiguous=False)
_SERVER_ERROR = _retry(Outcome.SERVER_ERROR, ambiguous=True)
_INVALID_ANSWER = _retry(Outcome.INVALID_ANSWER, ambiguous=True)

_BY_STATUS = {
    401: _retry(Outcome.UNAUTHORIZED, ambiguous=False),
    403: _retry(Outcome.UNAUTHORIZED, ambiguous=False),
    408: _retry(Outcome.RETRYABLE, ambiguous=False),
    410: Classification(Outcome.GONE, Verdict.DEAD, ambiguous=False),
    425: _retry(Outcome.RETRYABLE, ambiguous=False),
    429: _retry(Outcome.THROTTLED, ambiguous=False),
    502: _retry(Outcome.THROTTLED, ambiguous=True),
    503: _retry(Outcome.THROTTLED, ambiguous=False),
    504: _retry(Outcome.THROTTLED, ambiguous=True),
}
_BY_HUNDRED = {2: _SUCCESS, 3: _REDIRECT, 4: _REJECTED, 5: _SERVER_ERROR}

_BEFORE_SENT = {
    Failure.DNS: _retry(Outcome.DNS_FAILED, ambiguous=False),
    Failure.CONNECT: _retry(Outcome.CONNECT_FAILED, ambiguous=False),
    Failure.TLS: _retry(Outcome.TLS_FAILED, ambiguous=False),
    Failure.TARGET_REFUSED: _retry(Outcome.TARGET_REFUSED, ambiguous=False),
    Failure.TIMEOUT: _retry(Outcome.TIMEOUT_BEFORE_SENT, ambiguous=False),
    # Nothing was written yet, so a connection that broke is one that was never made.
    Failure.CONNECTION_LOST: _retry(Outcome.CONNECT_FAILED, ambiguous=False),
    Failure.INVALID_ANSWER: _retry(Outcome.CONNECT_FAILED, ambiguous=False),
    Failure.NOT_SENT: _retry(Outcome.NOT_SENT, ambiguous=False),
}
_AFTER_SENT = {
    Failure.TIMEOUT: _retry(Outcome.TIMEOUT_AFTER_SENT, ambiguous=True),
    Failure.INVALID_ANSWER: _INVALID_ANSWER,
}
_CONNECTION_LOST = _retry(Outcome.CONNECTION_LOST, ambiguous=True)


def classify_status(status: int) -> Classification:
    """What a final status means. Numbers outside 200 to 599 are not answers that HTTP knows."""
    return _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, _INVALID_ANSWER)


def classify_failure(failure: Failure, *, request_begun: bool) -> Classification:
    """What a request without a status means; ``request_begun``: its first byte was handed to the connection."""
    if request_begun:
        return _AFTER_SENT.get(failure, _CONNECTION_LOST)
    return _BEFORE_SENT[failure]
