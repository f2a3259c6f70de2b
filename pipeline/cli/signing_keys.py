"""Signing keys of destinations, as they are made and taken over on the command line."""

from __future__ import annotations

import base64
import secrets
from enum import StrEnum

from pipeline.core.signing import PRIVATE_PREFIX, SECRET_PREFIX, SecretError, decode_private_key, decode_secret
from pipeline.core.signing import new_private_key as _new_private_key

SECRET_BYTES = 32
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64


class Scheme(StrEnum):
    """Of Standard Webhooks."""

    V1 = "v1"
    V1A = "v1a"


def new_signing_key(scheme: Scheme) -> str:
    """``whsec_`` or ``whsk_`` and base64."""
    if scheme is Scheme.V1A:
        return _new_private_key()
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def check_signing_key(text: str) -> str:
    """The key as it is. Raises SecretError, which does not repeat it."""
    if text.startswith(PRIVATE_PREFIX):
        decode_private_key(text)
        return text
    try:
        length = len(decode_secret(text))
    except SecretError:
        length = 0
    if not SECRET_BYTES_MIN <= length <= SECRET_BYTES_MAX or text.removeprefix(SECRET_PREFIX).count("=") > 2:
        raise SecretError(
            f"the secret must be {SECRET_PREFIX} and base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, "
            f"or a {PRIVATE_PREFIX} key"
        )
    return text
