"""What one API key may ask of one process: requests per second, bytes per second, requests in flight."""

from __future__ import annotations

import math
import time

from pipeline.admission.problems import Kind, Refusal
from pipeline.core.pacing import TokenBucket
from pipeline.ledger.api_keys import KeyLimits


class KeyMeter:
    """Counts what a key uses. The limits hold per process: two processes together let twice as much through."""

    def __init__(self, limits: KeyLimits, *, now: float) -> None:
        self._limits = limits
        self._requests = TokenBucket(limits.requests_per_second, _burst(limits), now=now)
        # Bytes are known once they are read, so the account may go below zero; then nothing is read until it is level.
        self._bytes = limits.bytes_per_second
        self._bytes_at = now
        self._in_flight = 0
        self._request = _Request(self)

    @property
    def is_idle(self) -> bool:
        return self._in_flight == 0

    def configure(self, limits: KeyLimits, *, now: float) -> None:
        if limits != self._limits:
            self._requests.configure(limits.requests_per_second, _burst(limits), now=now)
            self._limits = limits

    def request(self) -> _Request:
        """Count one request while the block runs. Entering raises Refusal where a limit is reached."""
        return self._request

    def _begin(self) -> None:
        now = time.monotonic()
        if self._in_flight >= self._limits.in_flight_max:
            raise _refusal(f"{self._limits.in_flight_max} requests of this key are in flight", 1.0)
        self._refill_bytes(now)
        if self._bytes <= 0:
            wait_seconds = -self._bytes / self._limits.bytes_per_second
            raise _refusal(f"this key sends more than {self._limits.bytes_per_second:g} bytes/s", wait_seconds)
        if not self._requests.take(now):
            wait_seconds = self._requests.wait_seconds(now)
            raise _refusal(f"this key sends more than {self._limits.requests_per_second:g} requests/s", wait_seconds)
        self._in_flight += 1

    def _end(self) -> None:
        self._in_flight -= 1

    def charge(self, read_bytes: int) -> None:
        """Count bytes that were read."""
        self._refill_bytes(time.monotonic())
        self._bytes -= read_bytes

    def _refill_bytes(self, now: float) -> None:
        grown = self._bytes + (now - self._bytes_at) * self._limits.bytes_per_second
        self._bytes = min(grown, self._limits.bytes_per_second)
        self._bytes_at = now


class _Request:
    """Any number of requests, since it holds nothing of one: a generator for each costs more than all the checks."""

    __slots__ = ("_meter",)

    def __init__(self, meter: KeyMeter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._meter._begin()

    def __exit__(self, *_: object) -> None:
        self._meter._end()


def _burst(limits: KeyLimits) -> int:
    """One second's worth."""
    return max(1, math.ceil(limits.requests_per_second))


def _refusal(detail: str, wait_seconds: float) -> Refusal:
    return Refusal(
        Kind.TOO_MANY, detail, mend="slow down, or ask for a key with higher limits", retry_after_seconds=wait_seconds
    )
