"""Every setting of the program, its default and its meaning.

Values come from environment variables with the prefix ``OUTRIDER_``. A secret may be given as
a file instead: ``OUTRIDER_POSTGRES_PASSWORD_FILE=/run/secrets/pg`` reads the value from that file
(one trailing newline is dropped). ``outrider settings sample`` prints the documented sample file;
a test keeps ``outrider.env.example`` equal to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pipeline.core.sealing import Vault
from pipeline.input_files import InputFileError, as_text, check_regular, read_regular
from topics.security import KafkaConnection

PREFIX = "OUTRIDER_"
FILE_SUFFIX = "_FILE"
SECRET_BYTES_MAX = 64 * 1024
CONNECT_SECONDS = 10
TLS_FILES = (
    *("postgres_sslrootcert", "postgres_sslcert", "postgres_sslkey"),
    *("kafka_ssl_cafile", "kafka_ssl_certfile", "kafka_ssl_keyfile"),
)

# A month is more than any of them needs, and infinity is no time to wait.
PositiveSeconds = Annotated[float, Field(gt=0, le=2_592_000, allow_inf_nan=False)]


# Labels of letters, digits and hyphens, RFC 1123.
_HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*\.?"
)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def variable(field: str) -> str:
    """The environment variable of a field."""
    return f"{PREFIX}{field.upper()}"


class SettingsError(Exception):
    """A setting is missing or wrong; the message names it and says what to do."""


class SecretFileSource(PydanticBaseSettingsSource):
    """Reads ``OUTRIDER_<NAME>_FILE`` for each secret that is not given directly."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # __call__ answers for all fields at once

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in secret_fields(self.settings_cls):
            direct = variable(name)
            path = os.environ.get(direct + FILE_SUFFIX)
            if path is None:
                continue
            if direct in os.environ:
                raise SettingsError(f"set {direct} or {direct}{FILE_SUFFIX}, not both")
            try:
                values[name] = as_text(Path(path), read_regular(Path(path), SECRET_BYTES_MAX)).removesuffix("\n")
            except InputFileError as error:
                raise SettingsError(f"{direct}{FILE_SUFFIX}: {error}") from None
        return values


def secret_fields(settings: type[BaseSettings]) -> list[str]:
    """Names of the fields that hold a secret, and so may come from a file."""
    return [name for name, field in settings.model_fields.items() if "SecretStr" in str(field.annotation)]


class Settings(BaseSettings):
    """One flat namespace; the comments that open a section also open it in the sample file."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    # --- PostgreSQL ---------------------------------------------------------------------
    postgres_dsn: SecretStr = Field(
        SecretStr("postgresql:///outrider"),
        description="Connection string or URI of the database, for the role of this component.",
    )
    postgres_password: SecretStr | None = Field(None, description="Password; overrides one in the connection string.")
    postgres_sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] | None = Field(
        None, description="TLS mode; use verify-full over any network."
    )
    postgres_sslrootcert: Path | None = Field(None, description="File with the CA of the server.")
    postgres_sslcert: Path | None = Field(None, description="File with the client certificate.")
    postgres_sslkey: Path | None = Field(None, description="File with the client's key.")
    postgres_pool_size: int = Field(4, ge=1, le=100, description="Connections that one component holds.")

    # --- Kafka --------------------------------------------------------------------------
    kafka_bootstrap_servers: str = Field(
        "127.0.0.1:9092",
        pattern=r"^\s*[^,\s]+:\d{1,5}(\s*,\s*[^,\s]+:\d{1,5})*\s*$",
        description="host:port, comma-separated.",
    )
    kafka_security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", description="How every client talks to the brokers."
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="SASL mechanism; needed with sasl_plaintext and sasl_ssl."
    )
    kafka_sasl_username: str | None = Field(None, description="SASL user.")
    kafka_sasl_password: SecretStr | None = Field(None, description="SASL password.")
    kafka_ssl_cafile: Path | None = Field(None, description="File with the CA of the brokers.")
    kafka_ssl_certfile: Path | None = Field(None, description="File with the client certificate (mutual TLS).")
    kafka_ssl_keyfile: Path | None = Field(None, description="File with the client's key.")
    kafka_ssl_key_password: SecretStr | None = Field(None, description="Password of that key.")

    # --- Topics -------------------------------------------------------------------------
    topic_prefix: str = Field(
        "outrider",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$",
        description="First part of every topic, consumer group and transactional id.",
    )
    topic_replication_factor: int = Field(3, ge=1, le=32, description="Copies of each partition.")
    topic_min_insync_replicas: int = Field(2, ge=1, le=32, description="Copies that must hold a write.")
    dispatch_partitions: int = Field(12, ge=1, le=10_000, description="Partitions of the dispatch topic.")
    attempts_partitions: int = Field(12, ge=1, le=10_000, description="Partitions of the attempts topic.")

    # --- Connector ----------------------------------------------------------------------
    connector_slot: str = Field("outrider", pattern=r"^[a-z0-9_]{1,63}$", description="Logical replication slot.")
    connector_publication: str = Field(
        "outrider", pattern=r"^[a-z0-9_]{1,63}$", description="Publication with the outbox tables."
    )
    connector_repair: Literal["automatic", "refuse"] = Field(
        "automatic",
        description="What a start does that finds slot and topics at odds: publish by id what is missing, or refuse.",
    )
    connector_transaction_rows: int = Field(
        4_000, ge=1, le=100_000, description="Rows after which a Kafka transaction closes."
    )
    connector_transaction_bytes: int = Field(
        4 * 1024 * 1024, ge=1, description="Bytes after which a Kafka transaction closes."
    )
    connector_later_rows: Literal["pass", "wait"] = Field(
        "pass",
        description="Whether later rows of a destination pass one that is in quarantine, or wait there behind it.",
    )
    connector_held_keys_max: int = Field(
        1_000,
        ge=1,
        le=100_000,
        description="Destinations held behind rows in quarantine; one more stops the connector.",
    )
    connector_safe_wal_warning_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=0,
        description="Warn when the slot is lost after less WAL than this; 0 warns only where it goes already.",
    )

    # --- Delivery worker ----------------------------------------------------------------
    worker_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="Stable name of this worker; by default made from host name and process id.",
    )
    worker_concurrency: int = Field(
        256, ge=1, le=10_000, description="Requests in flight of one worker, over all destinations."
    )
    worker_lane_depth: int = Field(
        2_000, ge=1, le=100_000, description="Deliveries of one destination that a worker holds before it parks."
    )
    worker_partition_high: int = Field(
        4_000, ge=10, description="Unsettled messages of one partition at which reading it stops."
    )
    worker_partition_low: int = Field(2_500, ge=1, description="Unsettled messages at which reading goes on.")
    worker_group_commit_rows: int = Field(200, ge=1, le=5_000, description="Claims or settlements in one statement.")
    worker_group_commit_seconds: float = Field(
        0.003, ge=0, le=1, description="Longest wait of a claim or settlement for company."
    )
    worker_park_after_seconds: PositiveSeconds = Field(
        2.0, description="A delivery that would wait longer than this in its lane goes back to the ledger."
    )
    worker_lease_margin_seconds: PositiveSeconds = Field(
        15.0, description="Lease beyond the destination's time-out, for settling."
    )
    worker_destination_cache_seconds: PositiveSeconds = Field(
        2.0, description="Age after which a destination's settings are read again."
    )
    worker_drain_seconds: PositiveSeconds = Field(
        30.0, description="Longest wait for requests in flight after SIGTERM."
    )
    worker_session_timeout_seconds: float = Field(
        10.0, ge=1, le=1_800, description="Silence after which the group gives this worker's partitions away."
    )
    worker_metrics_destinations_max: int = Field(
        100, ge=0, le=10_000, description="Destinations that a worker's metrics name; the others are one series."
    )
    worker_breaker_failures: int = Field(
        10, ge=1, le=1_000_000, description="Failures in a row after which a destination's breaker opens."
    )
    worker_breaker_first_seconds: PositiveSeconds = Field(
        1.0, description="Time that a breaker stays open at first; doubles each time that its probe fails."
    )
    worker_breaker_max_seconds: PositiveSeconds = Field(60.0, description="Longest time that a breaker stays open.")
    retry_after_max_seconds: PositiveSeconds = Field(
        86_400.0, description="Longest pause of a destination that its Retry-After may ask for."
    )

    # --- Receivers ----------------------------------------------------------------------
    secrets_keys: SecretStr | None = Field(
        None,
        description="Keys that seal secrets at rest: id:base64 each, separated by spaces, the current one first. "
        "Make one with outrider secrets new-key; unset, secrets are stored as they are.",
    )
    target_ports: str = Field(
        "80 443 1024-65535",
        description="Ports that destinations may have: numbers and ranges, separated by spaces.",
    )
    target_http: bool = Field(True, description="Send to URLs without TLS, where a destination has been given one.")

    # --- Reconciler ---------------------------------------------------------------------
    reconciler_interval_seconds: PositiveSeconds = Field(1.0, description="Longest time between two passes.")
    reconciler_page_rows: int = Field(500, ge=1, le=10_000, description="Rows in one transaction of a pass.")
    reconciler_pass_rows: int = Field(20_000, ge=1, description="Rows after which a pass ends; the next one goes on.")
    reconciler_window_seconds: PositiveSeconds = Field(
        2.0,
        description="How much work, in seconds at its start rate, a destination is given ahead. What workers park comes "
        "round again, so no more than OUTRIDER_WORKER_PARK_AFTER_SECONDS.",
    )
    sources_directory: Path | None = Field(
        None,
        description="Folder with the sources, one TOML file each: what business rows become due, and what they admit. "
        "The reconciler reads it when it starts.",
    )
    outbox_retention_days: int = Field(7, ge=1, le=3_650, description="Days that dispatch rows are kept.")
    attempt_retention_days: int = Field(90, ge=1, le=3_650, description="Days that attempt rows are kept.")
    payload_retention_days: int = Field(
        90,
        ge=1,
        le=36_500,
        description="Days that an event keeps its payload after its last delivery became terminal. Its identity and hash stay: "
        "the same event again is nothing new. What has lost its payload cannot be replayed.",
    )
    audit_retention_days: int = Field(
        400, ge=31, le=36_500, description="Days that the audit's rows are kept; a tombstone stays in their place."
    )

    # --- HTTP listeners -----------------------------------------------------------------
    api_host: str = Field("127.0.0.1", description="Address of the API.")
    api_port: int = Field(8080, ge=0, le=65_535, description="Port of the API; 0 takes a free one.")
    api_body_bytes_max: int = Field(
        256 * 1024, ge=1, le=64 * 1024 * 1024, description="Bytes of a request to the API, but for batches."
    )
    api_batch_bytes_max: int = Field(
        4 * 1024 * 1024, ge=1, le=256 * 1024 * 1024, description="Bytes of a batch of events."
    )
    api_batch_items_max: int = Field(1_000, ge=1, le=10_000, description="Events in one batch.")
    api_in_flight_max: int = Field(
        1_024, ge=1, le=100_000, description="Requests that the API works on at once; more are turned away with 503."
    )
    api_buffered_bytes_max: int = Field(
        64 * 1024 * 1024, ge=1, description="Bytes of request bodies that the API holds at once, over all requests."
    )
    api_receiver_networks: str | None = Field(
        None,
        description="Private networks (CIDR, separated by spaces) that destinations made over the API may lie in.",
    )
    api_receiver_http: bool = Field(False, description="Let destinations made over the API have URLs without TLS.")
    health_host: str = Field("127.0.0.1", description="Address of /livez, /readyz and /metrics of a component.")
    health_port: int = Field(
        0, ge=0, le=65_535, description="Port of /livez, /readyz and /metrics; 0 turns the listener off."
    )

    # --- Logs ---------------------------------------------------------------------------
    log_format: Literal["text", "json"] = Field("text", description="Form of the log lines on stderr.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, SecretFileSource(settings_cls)

    @field_validator("postgres_dsn")
    @classmethod
    def _is_conninfo(cls, value: SecretStr) -> SecretStr:
        try:
            conninfo_to_dict(value.get_secret_value())
        except ProgrammingError:
            # libpq's message quotes the string, which may hold a password.
            raise ValueError("is neither a postgresql:// URI nor a string such as host=db dbname=outrider") from None
        return value

    @field_validator("target_ports")
    @classmethod
    def _are_ports(cls, value: str) -> str:
        _port_ranges(value)
        return value

    @field_validator("secrets_keys")
    @classmethod
    def _are_keys(cls, value: SecretStr | None) -> SecretStr | None:
        Vault.of(_reveal(value))
        return value

    @field_validator("api_host", "health_host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        if not _HOST.fullmatch(value) and not _is_address(value):
            raise ValueError(f"{value!r} is neither an address nor a host name to listen on")
        return value

    @field_validator("api_receiver_networks")
    @classmethod
    def _are_networks(cls, value: str | None) -> str | None:
        for text in (value or "").split():
            try:
                ip_network(text)
            except ValueError as error:
                raise ValueError(f"{text!r}: {error}; write networks as 10.1.0.0/16 fd00::/8") from None
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        low, high = "worker_partition_low", "worker_partition_high"
        if self.worker_partition_low >= self.worker_partition_high:
            raise ValueError(f"{variable(low)} must be below {variable(high)}")
        if self.topic_min_insync_replicas > self.topic_replication_factor:
            raise ValueError(
                f"{variable('topic_min_insync_replicas')} must not be above {variable('topic_replication_factor')}"
            )
        for name in TLS_FILES:
            path = getattr(self, name)
            if path is not None:
                _check_file(name, path)
        _ = self.kafka  # raises where its parts do not fit
        return self

    @property
    def postgres_conninfo(self) -> str:
        """libpq connection string with password and TLS merged in. Never log it.

        A server that does not answer is given up after CONNECT_SECONDS, unless the string says otherwise: psycopg would wait
        for two minutes, longer than a component has to end.
        """
        extra: dict[str, str] = {}
        if "connect_timeout" not in conninfo_to_dict(self.postgres_dsn.get_secret_value()):
            extra["connect_timeout"] = str(CONNECT_SECONDS)
        if self.postgres_password is not None:
            extra["password"] = self.postgres_password.get_secret_value()
        for name in ("sslmode", "sslrootcert", "sslcert", "sslkey"):
            value = getattr(self, f"postgres_{name}")
            if value is not None:
                extra[name] = str(value)
        return make_conninfo(self.postgres_dsn.get_secret_value(), **extra)

    @property
    def kafka(self) -> KafkaConnection:
        """How to reach the brokers, for every client alike."""
        return KafkaConnection(
            bootstrap_servers=self.kafka_bootstrap_servers,
            security_protocol=self.kafka_security_protocol,
            sasl_mechanism=self.kafka_sasl_mechanism,
            sasl_username=self.kafka_sasl_username,
            sasl_password=_reveal(self.kafka_sasl_password),
            ssl_cafile=self.kafka_ssl_cafile,
            ssl_certfile=self.kafka_ssl_certfile,
            ssl_keyfile=self.kafka_ssl_keyfile,
            ssl_key_password=_reveal(self.kafka_ssl_key_password),
        )

    @cached_property
    def vault(self) -> Vault:
        """What seals and opens secrets."""
        return Vault.of(_reveal(self.secrets_keys))

    @property
    def target_port_ranges(self) -> tuple[tuple[int, int], ...]:
        """``target_ports`` as inclusive ranges."""
        return _port_ranges(self.target_ports)

    def name(self, part: str) -> str:
        """``outrider.<part>``: the name of a topic or group under the configured prefix."""
        return f"{self.topic_prefix}.{part}"


def _port_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Raises ValueError."""
    ranges = []
    for word in text.split():
        first, dash, last = word.partition("-")
        numbers = [int(part) if part.isdecimal() and len(part) <= 5 else 0 for part in (first, last if dash else first)]
        if not 1 <= numbers[0] <= numbers[1] <= 65_535:
            raise ValueError(f"{word!r} is neither a port nor a range of ports; write them as in: 443 9000-9100")
        ranges.append((numbers[0], numbers[1]))
    if not ranges:
        raise ValueError("names no port; write them as in: 443 9000-9100")
    return tuple(ranges)


def _check_file(name: str, path: Path) -> None:
    """The clients' libraries would wait for a pipe. Raises ValueError."""
    try:
        check_regular(path)
    except InputFileError as error:
        raise ValueError(f"{variable(name)}: {error}") from None


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def load_settings(**overrides: Any) -> Settings:
    """Read the environment. Raises SettingsError with one line for each wrong value."""
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("; ".join(_line(part["loc"], part["msg"]) for part in error.errors())) from None


def _line(location: tuple[int | str, ...], message: str) -> str:
    said = message.removeprefix("Value error, ")
    return f"{variable(str(location[0]))}: {said}" if location else said


def environment_of(values: Mapping[str, object]) -> dict[str, str]:
    """Environment variables for settings given by field name; None is left out."""
    return {variable(name): str(value) for name, value in values.items() if value is not None}
