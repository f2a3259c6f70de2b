"""Lets downloads trust the certificates that the machine trusts.

requests brings a list of its own and ignores the system's, so that behind an inspecting proxy pip
may work (it can be told of the system's list for good) while every download of ours fails.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What requests reads, in its order.
CHOICE_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Debian and Alpine, Red Hat, SUSE: OpenSSL's own default names a file that most do not have.
KNOWN_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)


def system_bundle() -> str | None:
    """The system's list of certificates, or None when it has none in a known place."""
    candidates = (ssl.get_default_verify_paths().cafile, *KNOWN_BUNDLES)
    return next((path for path in candidates if path is not None and Path(path).is_file()), None)


@contextmanager
def trust_system_certificates() -> Iterator[None]:
    """Have requests use the system's list for the block, unless the user chose one."""
    bundle = system_bundle()
    if bundle is None or any(variable in os.environ for variable in CHOICE_VARIABLES):
        yield
        return
    os.environ[CHOICE_VARIABLES[0]] = bundle
    try:
        yield
    finally:
        del os.environ[CHOICE_VARIABLES[0]]
