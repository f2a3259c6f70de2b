"""One description of how to reach Kafka, translated for each client library.

librdkafka (confluent-kafka) and aiokafka (under Faust) name the same things differently; every
client of this project gets its address, TLS and SASL settings from here, so that one set of
settings serves all of them.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SecurityProtocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaConnection:
    """Addresses and credentials of a cluster. Its repr shows no secret."""

    bootstrap_servers: str
    security_protocol: SecurityProtocol = "plaintext"
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_key_password: str | None = None

    def __repr__(self) -> str:
        return f"KafkaConnection({self.bootstrap_servers!r}, {self.security_protocol!r})"

    def __post_init__(self) -> None:
        if self.uses_sasl and not (self.sasl_mechanism and self.sasl_username and self.sasl_password):
            raise ValueError(
                f"Kafka security protocol {self.security_protocol} needs a SASL mechanism, user and password"
            )

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("ssl", "sasl_ssl")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("sasl_plaintext", "sasl_ssl")

    def librdkafka(self) -> dict[str, str | int | float | bool]:
        """Configuration for confluent_kafka's producers, consumers and admin client."""
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        optional = {
            "sasl.mechanism": self.sasl_mechanism if self.uses_sasl else None,
            "sasl.username": self.sasl_username if self.uses_sasl else None,
            "sasl.password": self.sasl_password if self.uses_sasl else None,
            "ssl.ca.location": self.ssl_cafile if self.uses_tls else None,
            "ssl.certificate.location": self.ssl_certfile if self.uses_tls else None,
            "ssl.key.location": self.ssl_keyfile if self.uses_tls else None,
            "ssl.key.password": self.ssl_key_password if self.uses_tls else None,
        }
        config.update({name: str(value) for name, value in optional.items() if value is not None})
        return config

    def ssl_context(self) -> ssl.SSLContext | None:
        """Verified TLS for Python clients, or None where the protocol has no TLS."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context(cafile=self.ssl_cafile)
        if self.ssl_certfile is not None:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, self.ssl_key_password)
        return context
