"""TLS towards receivers: whom we trust, and the certificate that we show.

A context is costly to make and is part of a connection's identity, so the same settings give the same context.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import lru_cache

CONTEXTS_CACHED = 256


class TlsSettingsError(Exception):
    """A CA, certificate or key of a destination cannot be used. The message holds nothing of them."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM texts. With ``ca`` only that is trusted, without it the system's; the client's certificate needs its key."""

    ca: str | None = None
    client_certificate: str | None = None
    client_key: str | None = field(default=None, repr=False)


SYSTEM_TRUST = TlsSettings()


@lru_cache(maxsize=CONTEXTS_CACHED)
def context_of(settings: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer, the name checked. Raises TlsSettingsError."""
    try:
        context = ssl.create_default_context(cadata=settings.ca)
    except (ssl.SSLError, ValueError) as error:
        raise TlsSettingsError(f"the CA is no certificate in PEM: {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if settings.client_certificate is not None and settings.client_key is not None:
        _load_chain(context, settings.client_certificate, settings.client_key)
    elif settings.client_certificate is not None or settings.client_key is not None:
        raise TlsSettingsError("a client certificate needs its key, and a key its certificate")
    return context


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """OpenSSL reads both from a file; this one is in memory only."""
    descriptor = os.memfd_create("client certificate")
    try:
        os.write(descriptor, f"{certificate.rstrip()}\n{key.rstrip()}\n".encode())
        # A password is never asked for: an encrypted key is refused instead of waiting at a terminal.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_refuse_password)
    except (OSError, ValueError) as error:
        raise TlsSettingsError(f"the client certificate and its key do not fit: {_reason(error)}") from None
    finally:
        os.close(descriptor)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)
