"""Secrets at rest: each under a key of its own, and that key under one from the settings (envelope encryption).

A sealed text is ``sealed:1:<key id>:<wrapped key>:<content>``, both parts base64 of nonce and AES-256-GCM ciphertext. Both are
bound to what the secret is and whose, so a value that is copied to another row does not open there. A new key in the settings
needs only the wrapping renewed.

Without a key in the settings texts stay as they are, and a text that is not sealed opens to itself: what was
stored before sealing was set up works until it is rotated.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "sealed:1:"
KEY_BYTES = 32
NONCE_BYTES = 12
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class SealingKeyError(ValueError):
    """A key in the settings is none. The message does not repeat it."""


class UnsealError(Exception):
    """A sealed text cannot be opened: its key is not in the settings, or it was changed or belongs elsewhere."""


@dataclass(frozen=True, slots=True)
class Vault:
    """Seals with the first of its keys, and opens with any of them. Keys by id, each KEY_BYTES long."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, text: str | None) -> Vault:
        """From a setting: ``id:base64`` of each key, separated by spaces or commas. Raises SealingKeyError."""
        keys: dict[str, bytes] = {}
        for number, word in enumerate(re.split(r"[\s,]+", (text or "").strip()), start=1):
            if not word:
                continue
            key_id, _, encoded = word.partition(":")
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if not _KEY_ID.fullmatch(key_id) or len(key) != KEY_BYTES or key_id in keys:
                raise SealingKeyError(
                    f"key {number} is not an id of its own, a colon and base64 of {KEY_BYTES} bytes; "
                    "make one with: outrider secrets new-key"
                )
            keys[key_id] = key
        return cls(keys)

    @property
    def current_id(self) -> str | None:
        """Id of the key that seals; None where nothing is sealed."""
        return next(iter(self.keys), None)

    def seal(self, text: str, *, purpose: str, owner: str) -> str:
        """``purpose``: what the secret is for; ``owner``: the destination's id."""
        key_id = self.current_id
        if key_id is None:
            return text
        content_key = AESGCM.generate_key(KEY_BYTES * 8)
        bound = _bound(purpose, owner)
        wrapped = _encrypt(self.keys[key_id], content_key, bound)
        return f"{PREFIX}{key_id}:{_text(wrapped)}:{_text(_encrypt(content_key, text.encode(), bound))}"

    def open(self, text: str, *, purpose: str, owner: str) -> str:
        """What was sealed. Raises UnsealError."""
        if not is_sealed(text):
            return text
        key_id, wrapped, content = _parts(text)
        bound = _bound(purpose, owner)
        return _decrypt(self._unwrap(key_id, wrapped, bound), content, bound).decode()

    def reseal(self, text: str, *, purpose: str, owner: str) -> str:
        """The same secret under the current key; as it is where nothing has to change. Raises UnsealError."""
        current = self.current_id
        if current is None or (is_sealed(text) and _parts(text)[0] == current):
            return text
        if not is_sealed(text):
            return self.seal(text, purpose=purpose, owner=owner)
        key_id, wrapped, content = _parts(text)
        bound = _bound(purpose, owner)
        renewed = _encrypt(self.keys[current], self._unwrap(key_id, wrapped, bound), bound)
        return f"{PREFIX}{current}:{_text(renewed)}:{_text(content)}"

    def _unwrap(self, key_id: str, wrapped: bytes, bound: bytes) -> bytes:
        key = self.keys.get(key_id)
        if key is None:
            raise UnsealError(f"it is sealed with key {key_id}, which is not in OUTRIDER_SECRETS_KEYS")
        return _decrypt(key, wrapped, bound)


def is_sealed(text: str) -> bool:
    return text.startswith(PREFIX)


def new_key(key_id: str) -> str:
    """A key as the setting takes it. Raises SealingKeyError for an id that it does not take."""
    if not _KEY_ID.fullmatch(key_id):
        raise SealingKeyError("the id of a key has 1 to 32 letters, digits, - or _")
    return f"{key_id}:{_text(AESGCM.generate_key(KEY_BYTES * 8))}"


def _bound(purpose: str, owner: str) -> bytes:
    return f"outrider\0{purpose}\0{owner}".encode()


def _parts(text: str) -> tuple[str, bytes, bytes]:
    try:
        key_id, wrapped, content = text.removeprefix(PREFIX).split(":")
        return key_id, base64.b64decode(wrapped, validate=True), base64.b64decode(content, validate=True)
    except ValueError:
        raise UnsealError("it is damaged: not three parts, the last two base64") from None


def _encrypt(key: bytes, content: bytes, bound: bytes) -> bytes:
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, bound)


def _decrypt(key: bytes, sealed: bytes, bound: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
    except (InvalidTag, ValueError):
        raise UnsealError(
            "it was changed, belongs to another destination, or its key is not the one of that id"
        ) from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
