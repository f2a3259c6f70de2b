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

A destination may have rules of its own: by status (``"404": "retry"``, ``"409": "success"``) or by outcome
(``"tls_failed": "dead"``), the status first. A rule changes what follows, not the outcome or its ambiguity; only a status that
counts as success becomes that. 410 disables the destination, and retries after 401 or 403 follow a schedule of
their own, unless a rule of the destination speaks of them.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    by_rule: bool = False
    """Whether a rule of the destination has decided, and not the table."""

    @property
    def disables_destination(self) -> bool:
        """The receiver says that it is gone for good."""
        return self.outcome is Outcome.GONE and not self.by_rule

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


Rules = Mapping[str, Verdict]
"""A destination's own: verdicts by status, as text, or by outcome. See check_rules."""

NO_RULES: Rules = {}
_NOT_RULED = frozenset((Outcome.SUCCESS, Outcome.NOT_SENT))


class RulesError(ValueError):
    """A rule speaks of what no rule may; the message names it, and what is possible."""


def check_rules(rules: Mapping[str, str]) -> dict[str, Verdict]:
    """Rules that were given as texts. Raises RulesError."""
    checked = {}
    for key, word in rules.items():
        is_status = len(key) == 3 and key.isascii() and key.isdecimal() and "300" <= key <= "599"
        if not is_status and key not in set(Outcome) - _NOT_RULED:
            raise RulesError(f"rule {key!r}: it is neither a status from 300 to 599 nor an outcome such as tls_failed")
        if word not in set(Verdict) or (word == Verdict.SUCCESS and not is_status):
            possible = "retry, dead or success" if is_status else "retry or dead"
            raise RulesError(f"rule {key}={word}: it may be {possible}")
        checked[key] = Verdict(word)
    return checked


def classify_status(status: int, rules: Rules = NO_RULES) -> Classification:
    """What a final status means. Numbers outside 200 to 599 are not answers that HTTP knows."""
    line = _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, _INVALID_ANSWER)
    if not rules or line is _SUCCESS:
        return line
    return _ruled(line, rules.get(str(status)) or rules.get(line.outcome))


def classify_failure(failure: Failure, *, request_begun: bool, rules: Rules = NO_RULES) -> Classification:
    """What a request without a status means; ``request_begun``: its first byte was handed to the connection."""
    line = _AFTER_SENT.get(failure, _CONNECTION_LOST) if request_begun else _BEFORE_SENT[failure]
    return _ruled(line, rules.get(line.outcome)) if rules else line


def _ruled(line: Classification, verdict: Verdict | None) -> Classification:
    if verdict is None:
        return line
    if verdict is Verdict.SUCCESS:
        return Classification(Outcome.SUCCESS, verdict, ambiguous=False, by_rule=True)
    return Classification(line.outcome, verdict, line.ambiguous, by_rule=True)
