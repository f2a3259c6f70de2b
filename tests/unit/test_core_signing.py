"""Standard Webhooks signatures, against the published vector and the standard's own library."""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from pipeline.core.signing import (
    SecretError,
    decode_private_key,
    decode_secret,
    new_private_key,
    public_key_of,
    sign,
    verify,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another key of 32 bytes, for sure").decode()


def test_the_published_vector():
    signature = sign([SECRET], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


PRIVATE = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="


def test_the_published_vector_of_v1a():
    signature = sign([PRIVATE], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == ("v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==")


def test_both_schemes_sign_side_by_side_and_each_is_checked_by_its_own_key():
    other = new_private_key()
    signatures = sign([SECRET, PRIVATE, other], "dlv_1", 1000, b"body")
    assert [part.split(",")[0] for part in signatures.split(" ")] == ["v1", "v1a", "v1a"]
    for key in (SECRET, public_key_of(PRIVATE), public_key_of(other)):
        assert verify([key], "dlv_1", "1000", signatures, b"body", now=1000.0)
        assert not verify([key], "dlv_1", "1000", signatures, b"bodY", now=1000.0)
    assert not verify([public_key_of(new_private_key())], "dlv_1", "1000", signatures, b"body", now=1000.0)
    # A signature counts for its own scheme alone.
    assert not verify([public_key_of(PRIVATE)], "dlv_1", "1000", signatures.replace("v1a,", "v1,"), b"body", now=1000.0)


def test_the_seed_alone_is_the_same_key():
    seed = "whsk_" + base64.b64encode(base64.b64decode(PRIVATE.removeprefix("whsk_"))[:32]).decode()
    assert public_key_of(seed) == public_key_of(PRIVATE)
    assert (
        public_key_of(PRIVATE)
        == "whpk_" + base64.b64encode(base64.b64decode(PRIVATE.removeprefix("whsk_"))[32:]).decode()
    )


@pytest.mark.parametrize(
    "key", ["", "whsk_", "whsk_AAAA", "whsec_6Xb/", "whsk_!!", PRIVATE.replace("VKIDij2H", "VKIDij2I")]
)
def test_a_private_key_that_is_none_is_refused_and_not_repeated(key):
    with pytest.raises(SecretError) as raised:
        decode_private_key(key)
    assert "6Xb" not in str(raised.value)


@pytest.mark.parametrize("signature", ["v1a,", "v1a,!!", "v1a,AAAA", "v1a", "", "v2,AAAA", "v1a," + "A" * 88])
def test_a_v1a_signature_that_is_none_is_refused(signature):
    assert not verify([public_key_of(PRIVATE)], "dlv_1", "1000", signature, b"", now=1000.0)


def standard_headers(message_id, timestamp, signature):
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def test_a_rotation_verifies_with_either_key():
    now = int(time.time())
    body = b'{"a":  1}'
    signature = sign([OTHER, SECRET], "dlv_1", now, body)
    assert len(signature.split(" ")) == 2
    for secret in (OTHER, SECRET):
        Webhook(secret).verify(body, standard_headers("dlv_1", now, signature))


@given(body=st.binary(max_size=200))
def test_the_standards_library_signs_the_same(body):
    # That library takes text only; every byte string has a text with the same UTF-8 bytes or none.
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    expected = Webhook(SECRET).sign("dlv_1", moment, text)
    assert sign([SECRET], "dlv_1", int(moment.timestamp()), body) == expected


def test_the_standards_library_refuses_a_changed_byte():
    now = int(time.time())
    signature = sign([SECRET], "dlv_1", now, b"body")
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(b"bodY", standard_headers("dlv_1", now, signature))


@given(body=st.binary(max_size=100), changed=st.binary(max_size=100))
def test_verify_accepts_what_was_signed_and_nothing_else(body, changed):
    signature = sign([SECRET], "dlv_1", 1000, body)
    assert verify([SECRET], "dlv_1", "1000", signature, body, now=1000.0)
    assert verify([OTHER, SECRET], "dlv_1", "1000", f"v1,AAAA {signature}", body, now=1000.0)
    assert verify([SECRET], "dlv_1", "1000", signature, changed, now=1000.0) is (body == changed)
    assert not verify([OTHER], "dlv_1", "1000", signature, body, now=1000.0)
    assert not verify([SECRET], "dlv_2", "1000", signature, body, now=1000.0)
    assert not verify([SECRET], "dlv_1", "1001", signature, body, now=1000.0)


@pytest.mark.parametrize(("now", "accepted"), [(700.0, True), (699.0, False), (1300.0, True), (1301.0, False)])
def test_old_and_future_timestamps_are_refused(now, accepted):
    signature = sign([SECRET], "dlv_1", 1000, b"")
    assert verify([SECRET], "dlv_1", "1000", signature, b"", now=now) is accepted


@pytest.mark.parametrize("timestamp", ["", "-1", "1e3", "1000.0", "\u0661\u0660\u0660\u0660", "9" * 5000])
def test_timestamps_that_are_not_unix_seconds_are_refused(timestamp):
    assert not verify([SECRET], "dlv_1", timestamp, sign([SECRET], "dlv_1", 1000, b""), b"", now=1000.0)


@pytest.mark.parametrize("secret", ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_!!", "whpk_AAAA"])
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret):
    with pytest.raises(SecretError) as raised:
        decode_secret(secret)
    assert "MfKQ" not in str(raised.value)
