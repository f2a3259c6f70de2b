"""API keys as text: ``outr_<key id>_<secret>``. Pure but for the random numbers.

The key id is public: it finds the row and names the key in logs. The secret is 256 random bits. The ledger keeps its
SHA-256: a slow hash makes guessing dear where people choose the secret, and 256 random bits cannot be guessed at any
speed, so a slow hash would only give whoever sends wrong keys a way to keep the server busy.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

KEY_ID_LENGTH = 16
SECRET_BYTES = 32
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_TOKEN = re.compile(r"outr_(?P<key_id>[a-z0-9]{16})_(?P<secret>[A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    key_id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"outr_{self.key_id}_{self.secret}"

    @property
    def secret_sha256(self) -> bytes:
        return hashlib.sha256(self.secret.encode()).digest()

    def matches(self, secret_sha256: bytes) -> bool:
        """In constant time."""
        return hmac.compare_digest(self.secret_sha256, secret_sha256)


def new_token() -> Token:
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(KEY_ID_LENGTH))
    return Token(key_id, secrets.token_urlsafe(SECRET_BYTES))


def parse_token(text: str) -> Token | None:
    """None for what cannot be a key."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else Token(match["key_id"], match["secret"])
