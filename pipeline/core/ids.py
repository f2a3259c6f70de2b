"""Identities, computed exactly as the database computes them (``outrider.identity_digest``).

Each part is preceded by its length, so that no separator can make two lists of parts alike: ids may hold any text.
"""

from __future__ import annotations

import hashlib
import struct
import uuid

_LENGTH = struct.Struct(">i")
_DIGEST_BYTES = 16


def delivery_identity(event_id: str, destination_id: str) -> str:
    """``dlv_`` and 32 hex digits; holds no ``.``, as the signed content needs."""
    return f"dlv_{_digest('delivery', event_id, destination_id).hex()}"


def message_identity(delivery_id: str, dispatch_seq: int) -> uuid.UUID:
    """Identity of one handing of a delivery to Kafka."""
    return uuid.UUID(bytes=_digest("message", delivery_id, str(dispatch_seq)))


def _digest(*parts: str) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(_LENGTH.pack(len(encoded)))
        hasher.update(encoded)
    return hasher.digest()[:_DIGEST_BYTES]
