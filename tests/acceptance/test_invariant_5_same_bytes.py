"""Invariant 5: bytes on the wire = bytes admitted, on every attempt, over CDC and Kafka, whatever they are."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict

import pytest
from standardwebhooks import Webhook

from pipeline.core.signing import verify
from tests.support.delivery_world import Received, Reply, opened, wait_until

PAYLOADS = {
    "empty": b"",
    "one_nul": b"\0",
    "nuls": b"\0" * 1000,
    "every_byte": bytes(range(256)) * 4,
    "not_utf8": b"\xff\xfe\xc3\x28\xed\xa0\x80",
    "json_order_and_space": b'{"b": 1,  "a": 2, "a": 3, "n": 1.0e2}',
    "bom_and_line_ends": b"\xef\xbb\xbfa\r\nb\rc\n\r\n\r\n",
    "looks_like_copy_text": b"\\x00\\N\t\\.\n",
    "looks_like_chunks": b"5\r\nhello\r\n0\r\n\r\n",
    "largest": os.urandom(256 * 1024),
}
ATTEMPTS = 3


@pytest.fixture
def world(database, bootstrap_servers, topic_prefix):
    with opened(database, bootstrap_servers, topic_prefix) as world:
        yield world


def test_every_attempt_carries_the_admitted_bytes_and_the_same_identity(world, component):
    seen: Counter[str] = Counter()

    def reply(received: Received) -> Reply:
        seen[received.delivery_id] += 1
        return Reply(200 if seen[received.delivery_id] >= ATTEMPTS else 500)

    world.receiver.reply = reply
    secret = world.add_destination("a", retry_first_delay_seconds=0.01, retry_factor=1)
    ids = {
        name: world.admit(name, "a", payload=payload, content_type="application/octet-stream")[0]
        for name, payload in PAYLOADS.items()
    }
    component("connector")
    component("worker", worker_breaker_failures=1_000)  # all fail many times, which is what a breaker is for
    component("reconciler", reconciler_interval_seconds=0.2)
    wait_until(lambda: world.states() == {"succeeded": len(PAYLOADS)}, "all succeeded on their last attempt")

    by_delivery = defaultdict(list)
    for received in world.receiver.received:
        by_delivery[received.delivery_id].append(received)
    for name, payload in PAYLOADS.items():
        requests = by_delivery.pop(ids[name])
        assert [r.headers["outrider-attempt"] for r in requests] == [str(n + 1) for n in range(ATTEMPTS)]
        for request in requests:
            assert request.body == payload, name
            assert request.headers["content-length"] == str(len(payload))
            assert request.headers["content-type"] == "application/octet-stream"
            assert request.headers["idempotency-key"] == ids[name]
            timestamp = request.headers["webhook-timestamp"]
            signature = request.headers["webhook-signature"]
            assert verify([secret], ids[name], timestamp, signature, request.body, now=float(timestamp))
        for attempt in world.attempts(ids[name]):
            assert bytes(attempt["payload_sha256"]) == hashlib.sha256(payload).digest()
    assert not by_delivery, "an identity that was never admitted"
    # The standard's own library reads text only; where the bytes are text, it agrees.
    for request in world.receiver.received:
        if request.delivery_id == ids["json_order_and_space"]:
            Webhook(secret).verify(request.body, request.headers)
