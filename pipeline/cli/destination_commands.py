"""``outrider destination …``: receivers, their limits and their secrets."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from pipeline.cli import destination_wire_commands
from pipeline.cli.acting import AsJson, Operator, OptionalReason, Reason, act
from pipeline.cli.destination_ping import PingError, ping
from pipeline.cli.destination_rules import RuleError, check_url, parse_networks
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import print_columns, print_fields, print_json, visible
from pipeline.cli.signing_keys import Scheme, check_signing_key, new_signing_key
from pipeline.core.signing import SECRET_PREFIX, SecretError
from pipeline.input_files import STANDARD_INPUT, InputFileError, read_named_text
from pipeline.ledger import operator as ledger
from pipeline.settings import SECRET_BYTES_MAX, load_settings

_SUBSCRIPTION = re.compile(r"[^*\x00-\x1f\x7f]+(\.\*)?|\*")

DestinationId = Annotated[str, typer.Argument(help="Name of the destination.")]
Rate = Annotated[float | None, typer.Option(min=0.0001, max=100_000, help="Requests started per second (50 at first).")]
Burst = Annotated[int | None, typer.Option(min=1, max=100_000, help="Starts that may come at once (50 at first).")]
Concurrency = Annotated[int | None, typer.Option(min=1, max=10_000, help="Requests in flight (16 at first).")]
TimeoutSeconds = Annotated[float | None, typer.Option(min=0.1, max=300, help="One request, all of it (20 at first).")]
FirstDelay = Annotated[
    float | None, typer.Option(min=0.01, max=86_400, help="Seconds before the first retry (10 at first).")
]
Factor = Annotated[float | None, typer.Option(min=1, max=100, help="Growth of the delay (3 at first).")]
MaxDelay = Annotated[
    float | None, typer.Option(min=0.01, max=604_800, help="Longest delay in seconds (21600 at first).")
]
MaxAttempts = Annotated[int | None, typer.Option(min=1, max=1_000, help="Attempts before it is dead (20 at first).")]
MaxAge = Annotated[float | None, typer.Option(min=1, help="Seconds before it is dead (432000 at first).")]
AllowHttp = Annotated[bool, typer.Option("--allow-http", help="Accept a URL without TLS.")]
Networks = Annotated[
    list[str] | None, typer.Option("--allow-network", help="Private network (CIDR) it may lie in; repeatable.")
]
Subscribe = Annotated[
    list[str] | None, typer.Option(help="Event type: 'media.processed', 'media.*' or '*'; repeatable.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Receivers, their limits and their secrets.")
    group.command("add")(add)
    group.command("set")(change)
    group.command("list")(show_all)
    group.command("show")(show)
    group.command("enable")(enable)
    group.command("disable")(disable)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("rotate-secret")(rotate_secret)
    group.command("test")(send_ping)
    destination_wire_commands.register(group)
    app.add_typer(group, name="destination")


def add(
    destination_id: DestinationId,
    *,
    url: Annotated[str, typer.Option(help="Where to POST.")],
    rate: Rate = None,
    burst: Burst = None,
    concurrency: Concurrency = None,
    timeout_seconds: TimeoutSeconds = None,
    retry_first_delay_seconds: FirstDelay = None,
    retry_factor: Factor = None,
    retry_max_delay_seconds: MaxDelay = None,
    retry_max_attempts: MaxAttempts = None,
    retry_max_age_seconds: MaxAge = None,
    allow_http: AllowHttp = False,
    allow_network: Networks = None,
    subscribe: Subscribe = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="File with a whsec_ secret to take over; - reads stdin. Default: a new one.")
    ] = None,
    operator: Operator = None,
    reason: OptionalReason = None,
    as_json: AsJson = False,
) -> None:
    """Add a receiver, and print its signing secret: this once, and never again."""
    settings = ledger.DestinationSettings(
        url=url,
        start_rate_per_second=rate,
        burst=burst,
        concurrency=concurrency,
        timeout_seconds=timeout_seconds,
        retry_first_delay_seconds=retry_first_delay_seconds,
        retry_factor=retry_factor,
        retry_max_delay_seconds=retry_max_delay_seconds,
        retry_max_attempts=retry_max_attempts,
        retry_max_age_seconds=retry_max_age_seconds,
        allowed_networks=allow_network,
    )
    if not destination_id.isprintable() or not 1 <= len(destination_id) <= 200:
        raise UsageError("a destination's name has 1 to 200 printable characters")
    _check_subscriptions(subscribe)
    with _one_line_errors():
        check_url(
            url,
            allow_http=allow_http,
            networks=parse_networks(allow_network or []),
            ports=load_settings().target_port_ranges,
        )
    secret = new_signing_key(Scheme.V1) if secret_file is None else _read_secret(secret_file)
    if not secret.startswith(SECRET_PREFIX):
        raise UsageError("--secret-file: a destination begins with a whsec_ secret; add a whsk_ key with rotate-secret")
    with _ledger() as connection:
        made = ledger.add_destination(
            connection,
            destination_id,
            settings,
            subscriptions=subscribe or [],
            secret=secret,
            vault=load_settings().vault,
            act=act(operator, reason),
        )
    _print_secret(destination_id, made, as_json, "added")


def change(
    destination_id: DestinationId,
    *,
    url: Annotated[str | None, typer.Option(help="Where to POST.")] = None,
    rate: Rate = None,
    burst: Burst = None,
    concurrency: Concurrency = None,
    timeout_seconds: TimeoutSeconds = None,
    retry_first_delay_seconds: FirstDelay = None,
    retry_factor: Factor = None,
    retry_max_delay_seconds: MaxDelay = None,
    retry_max_attempts: MaxAttempts = None,
    retry_max_age_seconds: MaxAge = None,
    allow_http: AllowHttp = False,
    allow_network: Networks = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="Allow no private network any more.")] = False,
    subscribe: Subscribe = None,
    unsubscribe: Annotated[list[str] | None, typer.Option(help="Event type as it was subscribed; repeatable.")] = None,
    operator: Operator = None,
    reason: OptionalReason = None,
) -> None:
    """Change what is given, and nothing else. --allow-network replaces the whole list."""
    if allow_network and no_network:
        raise UsageError("--allow-network and --no-network exclude each other")
    settings = ledger.DestinationSettings(
        url=url,
        start_rate_per_second=rate,
        burst=burst,
        concurrency=concurrency,
        timeout_seconds=timeout_seconds,
        retry_first_delay_seconds=retry_first_delay_seconds,
        retry_factor=retry_factor,
        retry_max_delay_seconds=retry_max_delay_seconds,
        retry_max_attempts=retry_max_attempts,
        retry_max_age_seconds=retry_max_age_seconds,
        allowed_networks=[] if no_network else allow_network,
    )
    if not (settings.given() or subscribe or unsubscribe):
        raise UsageError("nothing to change: name at least one setting (see --help)")
    _check_subscriptions(subscribe)
    with _one_line_errors():
        parse_networks(allow_network or [])
    with _ledger() as connection, connection.transaction():
        if settings.url is not None or settings.allowed_networks is not None:
            old_url, old_networks = ledger.reachable_settings(connection, destination_id)
            networks = old_networks if settings.allowed_networks is None else settings.allowed_networks
            # A URL that stands already was accepted without TLS once.
            http_stands = url is None and old_url.startswith("http:")
            check_url(
                url or old_url,
                allow_http=allow_http or http_stands,
                networks=parse_networks(networks),
                ports=load_settings().target_port_ranges,
            )
        ledger.set_destination(
            connection,
            destination_id,
            settings,
            subscribe=subscribe or [],
            unsubscribe=unsubscribe or [],
            act=act(operator, reason),
        )
    print(f"changed {visible(destination_id)}: workers take it up within seconds")


def show_all(as_json: AsJson = False) -> None:
    """List every receiver with its limits."""
    with _ledger() as connection:
        entries = ledger.list_destinations(connection)
    if as_json:
        print_json(entries)
        return
    print_columns(
        ("DESTINATION", "ENABLED", "RATE/S", "BURST", "IN FLIGHT", "SUBSCRIBED TO", "URL"),
        [
            (
                entry.destination_id,
                _standing(entry),
                f"{entry.start_rate_per_second:g}",
                entry.burst,
                entry.concurrency,
                ", ".join(entry.subscriptions) or None,
                entry.url,
            )
            for entry in entries
        ],
    )


def show(destination_id: DestinationId, as_json: AsJson = False) -> None:
    """Everything about one receiver but its secrets."""
    with _ledger() as connection:
        entry = _entry(connection, destination_id)
        keys = ledger.list_secrets(connection, destination_id)
        unsettled = ledger.unsettled_by_state(connection, destination_id)
        pace = ledger.pace_of_destination(connection, destination_id)
    if as_json:
        print_json({**asdict(entry), "secrets": keys, "unsettled": unsettled, "pace": pace})
        return
    fields = asdict(entry) | {
        name: ", ".join(getattr(entry, name)) or None for name in ("allowed_networks", "subscriptions")
    }
    fields |= {name: _pairs(getattr(entry, name)) for name in ("answer_rules", "static_headers")}
    print_fields(fields.items())
    print_fields((f"{key.scheme} key {key.key_id}", _key_state(key)) for key in keys)
    print_fields((f"public half of {key.key_id}", key.public_key) for key in keys if key.public_key is not None)
    print_fields((name, value) for name, value in asdict(pace).items() if value is not None)
    print_fields(unsettled.items())


def enable(destination_id: DestinationId, reason: Reason, operator: Operator = None) -> None:
    """Let deliveries to it start again; what waited is due at once."""
    _switch(destination_id, operator, reason, enabled=True)


def disable(destination_id: DestinationId, reason: Reason, operator: Operator = None) -> None:
    """Hold deliveries to it: they wait, and none is lost. Requests in flight end as they would."""
    _switch(destination_id, operator, reason, enabled=False)


def pause(destination_id: DestinationId, reason: Reason, operator: Operator = None) -> None:
    """Start nothing for now, and go on taking events for it: they wait. Requests in flight end as they would."""
    with _ledger() as connection:
        paused = ledger.pause_destination(connection, destination_id, act(operator, reason))
    print(f"paused {visible(destination_id)}" if paused else f"{visible(destination_id)} is paused already")


def resume(destination_id: DestinationId, reason: Reason, operator: Operator = None) -> None:
    """End its pause, whether an operator, its own Retry-After or an open breaker began it."""
    with _ledger() as connection:
        resumed = ledger.resume_destination(connection, destination_id, act(operator, reason))
    print(f"resumed {visible(destination_id)}" if resumed else f"nothing holds {visible(destination_id)}")


def rotate_secret(
    destination_id: DestinationId,
    *,
    overlap_hours: Annotated[
        float, typer.Option(min=0, max=8_760, help="How long the secret before signs too; 0 when it leaked.")
    ] = 24.0,
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the whsec_ or whsk_ key to use; - reads stdin. Default: a new one.")
    ] = None,
    scheme: Annotated[
        Scheme, typer.Option(help="Of a new key: v1 (HMAC, a secret that both sides hold) or v1a (ed25519).")
    ] = Scheme.V1,
    operator: Operator = None,
    reason: OptionalReason = None,
    as_json: AsJson = False,
) -> None:
    """Make a new signing key and print it: this once, and never again.

    Each scheme rotates by itself. The first v1a key signs beside v1, and receivers need only its public half.
    """
    secret = new_signing_key(scheme) if secret_file is None else _read_secret(secret_file)
    with _ledger() as connection:
        made = ledger.rotate_secret(
            connection,
            destination_id,
            secret,
            act(operator, reason),
            overlap_seconds=overlap_hours * 3_600,
            vault=load_settings().vault,
        )
    _print_secret(destination_id, made, as_json, "rotated")


def send_ping(destination_id: DestinationId, as_json: AsJson = False) -> None:
    """POST a signed ping to it, enabled or not, and show what came back; exit code 1 where that is no success."""
    settings = load_settings()
    with _ledger():
        pass  # a database that is away is said at once; the pool below would try for a while
    with _one_line_errors():
        outcome = asyncio.run(ping(settings, destination_id))
    if as_json:
        print_json(outcome)
    else:
        fields = asdict(outcome)
        headers, timings = fields.pop("headers"), fields.pop("timings")
        print_fields((name, value) for name, value in fields.items() if value is not None)
        print_fields((f"{phase} seconds", f"{value:.3f}") for phase, value in timings.items() if value is not None)
        print_fields((f"answer's {name}", value) for name, value in headers.items())
    raise typer.Exit(0 if outcome.is_success else 1)


def _switch(destination_id: str, operator: str | None, reason: str, *, enabled: bool) -> None:
    with _ledger() as connection:
        switched = ledger.switch_destination(connection, destination_id, act(operator, reason), enabled=enabled)
    word = "enabled" if enabled else "disabled"
    print(f"{word} {visible(destination_id)}" if switched else f"{visible(destination_id)} is {word} already")


def _entry(connection: psycopg.Connection, destination_id: str) -> ledger.DestinationEntry:
    entries = ledger.list_destinations(connection, destination_id)
    if not entries:
        raise ledger.NoSuchDestinationError(destination_id)
    return entries[0]


@contextmanager
def _ledger() -> Iterator[psycopg.Connection]:
    with _one_line_errors(), ledger.operator_connection(load_settings().postgres_conninfo) as connection:
        yield connection


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (RuleError, PingError) as error:
        raise CommandError(str(error)) from None
    except ledger.NoSuchDestinationError as error:
        raise CommandError(f"no destination {error}: see outrider destination list") from None
    except ledger.DestinationExistsError as error:
        raise CommandError(f"destination {error} exists already: change it with outrider destination set") from None
    except psycopg.errors.CheckViolation as error:
        raise CommandError(f"the schema refuses it: {error.diag.message_primary}") from None


def _standing(entry: ledger.DestinationEntry) -> str:
    if not entry.enabled:
        return f"no: {entry.disabled_reason}"
    return "yes" if entry.paused_at is None else f"paused: {entry.paused_reason}"


def _check_subscriptions(event_types: list[str] | None) -> None:
    for event_type in event_types or []:
        if not _SUBSCRIPTION.fullmatch(event_type):
            raise UsageError(f"subscription {event_type!r}: write a type, a prefix such as 'media.*', or '*'")


def _read_secret(path: Path) -> str:
    try:
        # One line of a terminal is enough.
        is_typed = str(path) == STANDARD_INPUT
        text = sys.stdin.readline(SECRET_BYTES_MAX) if is_typed else read_named_text(path, SECRET_BYTES_MAX)
    except InputFileError as error:
        raise CommandError(f"--secret-file: {error}") from None
    try:
        return check_signing_key(text.strip())
    except SecretError as error:
        raise CommandError(f"--secret-file: {error}") from None


def _print_secret(destination_id: str, made: ledger.NewSecret, as_json: bool, verb: str) -> None:
    if as_json:
        public = {} if made.public_key is None else {"public_key": made.public_key}
        print_json({"destination_id": destination_id, "key_id": made.key_id, "secret": made.secret, **public})
        return
    print(f"{verb} {visible(destination_id)}; its signing secret, shown this once ({made.key_id}):")
    print(made.secret)
    if made.public_key is not None:
        print("receivers check its signatures with the public half, which may be shown:")
        print(made.public_key)


def _key_state(key: ledger.SecretEntry) -> str:
    if key.valid_until is None:
        return f"current, since {visible(key.created_at)}"
    return f"{'signs too until' if key.is_valid else 'retired'} {visible(key.valid_until)}"


def _pairs(values: dict[str, str]) -> str | None:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or None
