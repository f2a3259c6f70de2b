"""The receiver's side of Standard Webhooks: every request is verified before anything else is believed."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from standardwebhooks.webhooks import Webhook, WebhookVerificationError, hmac_data

TOLERANCE_SECONDS = 300

Verdict = Literal["valid", "valid_bytes", "invalid"]
"""valid: by `Webhook.verify`. valid_bytes: by the same package's HMAC over a body that is not UTF-8."""


class Verifier:
    """Verifies with the `standardwebhooks` package, under any of a destination's secrets.

    `Webhook.verify` decodes the body as UTF-8 and so raises UnicodeDecodeError for bytes that are not. Such bodies
    are legal: for them the package's HMAC is compared here, over the exact bytes and within the same tolerance.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._webhooks = [Webhook(secret) for secret in secrets]
        self._keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in secrets]

    def verify(self, body: bytes, headers: Mapping[str, str]) -> Verdict:
        """Never raises: whatever cannot be verified is invalid."""
        signed = {name: headers.get(name, "") for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
        for webhook in self._webhooks:
            try:
                webhook.verify(body, signed, json_parse=False)
            except UnicodeDecodeError:
                return self._verify_bytes(body, signed)
            except (WebhookVerificationError, ValueError):
                # ValueError: the package does not expect a signature without its version, or broken base64.
                continue
            return "valid"
        return "invalid"

    def _verify_bytes(self, body: bytes, signed: Mapping[str, str]) -> Verdict:
        try:
            age_seconds = time.time() - int(signed["webhook-timestamp"])
            given = [
                base64.b64decode(signature, validate=True)
                for version, _, signature in (part.partition(",") for part in signed["webhook-signature"].split(" "))
                if version == "v1"
            ]
        except (ValueError, binascii.Error):
            return "invalid"
        content = f"{signed['webhook-id']}.{signed['webhook-timestamp']}.".encode() + body
        fits = any(hmac.compare_digest(hmac_data(key, content), one) for key in self._keys for one in given)
        return "valid_bytes" if fits and abs(age_seconds) <= TOLERANCE_SECONDS else "invalid"
