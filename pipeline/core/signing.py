"""Standard Webhooks signatures over ``id.timestamp.body``: v1 (HMAC-SHA256) and v1a (ed25519).

The body goes in as the exact bytes on the wire. During a rotation each valid key signs, the current one first, and all
signatures go into the one header. A ``whsec_`` secret signs v1; a ``whsk_`` key signs v1a, and receivers check that with
its public half (``whpk_``), so that nothing they hold can sign.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SECRET_PREFIX = "whsec_"  # noqa: S105 - a prefix, not a secret
PRIVATE_PREFIX = "whsk_"
PUBLIC_PREFIX = "whpk_"
VERSION = "v1"
VERSION_ED25519 = "v1a"
TOLERANCE_SECONDS = 300
_SEED_BYTES = 32
_KEYS_CACHED = 4096


class SecretError(ValueError):
    """A key is not its prefix and base64 of the right length. The message does not repeat it."""


@lru_cache(maxsize=_KEYS_CACHED)
def decode_secret(secret: str) -> bytes:
    """Key bytes of a ``whsec_`` secret. Raises SecretError."""
    if not secret.startswith(SECRET_PREFIX):
        raise SecretError(f"a signing secret begins with {SECRET_PREFIX}")
    return _decode(SECRET_PREFIX, secret)


@lru_cache(maxsize=_KEYS_CACHED)
def decode_private_key(key: str) -> Ed25519PrivateKey:
    """Key of a ``whsk_`` text: the seed, and after it the public half or nothing. Raises SecretError."""
    content = _decode(PRIVATE_PREFIX, key)
    if len(content) not in (_SEED_BYTES, 2 * _SEED_BYTES):
        raise SecretError(f"what follows {PRIVATE_PREFIX} has {len(content)} bytes, not 32 or 64")
    private = Ed25519PrivateKey.from_private_bytes(content[:_SEED_BYTES])
    if content[_SEED_BYTES:] not in (b"", private.public_key().public_bytes_raw()):
        raise SecretError(f"the two halves of the {PRIVATE_PREFIX} key do not belong together")
    return private


def new_private_key() -> str:
    """A ``whsk_`` key as others write it: seed and public half."""
    private = Ed25519PrivateKey.generate()
    content = private.private_bytes_raw() + private.public_key().public_bytes_raw()
    return PRIVATE_PREFIX + base64.b64encode(content).decode()


def public_key_of(key: str) -> str:
    """The ``whpk_`` text that receivers check a ``whsk_`` key's signatures with. Raises SecretError."""
    return PUBLIC_PREFIX + base64.b64encode(decode_private_key(key).public_key().public_bytes_raw()).decode()


def signed_content(message_id: str, timestamp: int, body: bytes) -> bytes:
    """The bytes under the signature. The id holds no ``.``, so the parts cannot be shifted into each other."""
    return b"%b.%d.%b" % (message_id.encode(), timestamp, body)


def sign(secrets: Iterable[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Value of ``webhook-signature``, one signature for each key; ``timestamp`` in unix seconds. Raises SecretError."""
    content = signed_content(message_id, timestamp, body)
    return " ".join([_signature(secret, content) for secret in secrets])


def verify(keys: Sequence[str], message_id: str, timestamp: str, signatures: str, body: bytes, *, now: float) -> bool:
    """Whether one of the signatures was made with one of the keys, at most TOLERANCE_SECONDS from ``now``.

    ``keys``: ``whsec_`` secrets and ``whpk_`` public keys.
    """
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 15:
        return False
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    content = signed_content(message_id, int(timestamp), body)
    given = signatures.split(" ")
    # Every pair is compared, in constant time each, so that timing tells nothing about which one fits.
    matches = [_matches(key, signature, content) for key in keys for signature in given]
    return any(matches)


def _signature(secret: str, content: bytes) -> str:
    if secret.startswith(PRIVATE_PREFIX):
        return f"{VERSION_ED25519},{_text(decode_private_key(secret).sign(content))}"
    return f"{VERSION},{_mac(decode_secret(secret), content)}"


def _matches(key: str, signature: str, content: bytes) -> bool:
    if not key.startswith(PUBLIC_PREFIX):
        ours = f"{VERSION},{_mac(decode_secret(key), content)}"
        return hmac.compare_digest(ours.encode(), signature.encode(errors="replace"))
    version, _, encoded = signature.partition(",")
    if version != VERSION_ED25519:
        return False
    try:
        public = Ed25519PublicKey.from_public_bytes(_decode(PUBLIC_PREFIX, key))
        public.verify(base64.b64decode(encoded, validate=True), content)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _decode(prefix: str, text: str) -> bytes:
    if not text.startswith(prefix):
        raise SecretError(f"a key of this kind begins with {prefix}")
    encoded = text.removeprefix(prefix)
    try:
        content = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SecretError(f"what follows {prefix} is not base64: {error}") from None
    if not content:
        raise SecretError(f"nothing follows {prefix}")
    return content


def _mac(key: bytes, content: bytes) -> str:
    return _text(hmac.digest(key, content, hashlib.sha256))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
