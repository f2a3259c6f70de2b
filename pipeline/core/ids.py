"""Identities, computed exactly as the database computes them (``outrider.identity_digest``).

Each part is preceded by its length, so that no separator can make two lists of parts alike: ids may hold any text.
"""

from __future__ import annotations

import hashlib
import re
import struct
import uuid

_LENGTH = struct.Struct(">i")
_DIGEST_BYTES = 16
_PING = re.compile(r"ping_[0-9a-f]{32}")


def delivery_identity(event_id: str, destination_id: str) -> str:
    """``dlv_`` and 32 hex digits; holds no ``.``, as the signed content needs."""
    return f"dlv_{_digest('delivery', event_id, destination_id).hex()}"


def message_identity(delivery_id: str, dispatch_seq: int) -> uuid.UUID:
    """Identity of one handing of a delivery to Kafka."""
    return uuid.UUID(bytes=_digest("message", delivery_id, str(dispatch_seq)))


def ping_identity(drawn: uuid.UUID) -> str:
    """The ``webhook-id`` of a test request, which belongs to no delivery. `drawn` at random."""
    return f"ping_{drawn.hex}"


def is_ping(webhook_id: str) -> bool:
    """Whether it is one of `ping_identity`."""
    return _PING.fullmatch(webhook_id) is not None


def _digest(*parts: str) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(_LENGTH.pack(len(encoded)))
        hasher.update(encoded)
    return hasher.digest()[:_DIGEST_BYTES]
