"""Standard Webhooks v1: HMAC-SHA256 over ``id.timestamp.body``.

The body goes in as the exact bytes on the wire. During a rotation each valid key signs, the current one first, and all
signatures go into the one header.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from functools import lru_cache

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret
VERSION = "v1"
TOLERANCE_SECONDS = 300
_KEYS_CACHED = 4096


class SecretError(ValueError):
    """A secret is not ``whsec_`` and base64. The message does not repeat it."""


@lru_cache(maxsize=_KEYS_CACHED)
def decode_secret(secret: str) -> bytes:
    """Key bytes of a ``whsec_`` secret. Raises SecretError."""
    if not secret.startswith(SECRET_PREFIX):
        raise SecretError(f"a signing secret begins with {SECRET_PREFIX}")
    encoded = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error as error:
        raise SecretError(f"what follows {SECRET_PREFIX} is not base64: {error}") from None
    if not key:
        raise SecretError(f"nothing follows {SECRET_PREFIX}")
    return key


def signed_content(message_id: str, timestamp: int, body: bytes) -> bytes:
    """The bytes under the signature. The id holds no ``.``, so the parts cannot be shifted into each other."""
    return b"%b.%d.%b" % (message_id.encode(), timestamp, body)


def sign(secrets: Iterable[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Value of ``webhook-signature``, one signature for each secret; ``timestamp`` in unix seconds."""
    content = signed_content(message_id, timestamp, body)
    return " ".join(f"{VERSION},{_mac(decode_secret(secret), content)}" for secret in secrets)


def verify(
    secrets: Sequence[str], message_id: str, timestamp: str, signatures: str, body: bytes, *, now: float
) -> bool:
    """Whether one of the signatures was made with one of the secrets, at most TOLERANCE_SECONDS from ``now``."""
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 15:
        return False
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    content = signed_content(message_id, int(timestamp), body)
    expected = [f"{VERSION},{_mac(decode_secret(secret), content)}".encode() for secret in secrets]
    given = [signature.encode(errors="replace") for signature in signatures.split(" ")]
    # Every pair is compared, in constant time each, so that timing tells nothing about which one fits.
    matches = [hmac.compare_digest(ours, theirs) for ours in expected for theirs in given]
    return any(matches)


def _mac(key: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
