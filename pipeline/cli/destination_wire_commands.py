"""``outrider destination answers`` and ``… wire``: what answers mean, and what goes over the wire, of one receiver."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from pipeline.cli.acting import Operator, OptionalReason, act
from pipeline.cli.errors import CommandError, UsageError
from pipeline.cli.output import visible
from pipeline.core.classify import RulesError, check_rules
from pipeline.delivery.tls import TlsSettings, TlsSettingsError, context_of
from pipeline.input_files import InputFileError, read_named_text
from pipeline.ledger import operator as ledger
from pipeline.ledger.credentials import CredentialChange, set_credential
from pipeline.settings import load_settings

FILE_BYTES_MAX = 65_536
DELAYS_MAX = 100

DestinationId = Annotated[str, typer.Argument(help="Name of the destination.")]


def register(group: typer.Typer) -> None:
    group.command("answers")(answers)
    group.command("wire")(wire)


def answers(
    destination_id: DestinationId,
    *,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Status or outcome, and retry, dead or success: 404=retry, tls_failed=dead; repeatable."),
    ] = None,
    no_rules: Annotated[bool, typer.Option("--no-rules", help="Go by the table alone again.")] = False,
    delays: Annotated[
        str | None, typer.Option(help="Seconds before each retry, as in 5,30,300; instead of growing delays.")
    ] = None,
    no_delays: Annotated[bool, typer.Option("--no-delays", help="Growing delays again.")] = False,
    unauthorized_delays: Annotated[
        str | None, typer.Option(help="Seconds before each retry after 401 or 403 (60,600,3600,21600 at first).")
    ] = None,
    operator: Operator = None,
    reason: OptionalReason = None,
) -> None:
    """What follows an answer, where the usual table does not fit. --rule replaces all rules."""
    if (rule and no_rules) or (delays and no_delays):
        raise UsageError("an option and its --no- form exclude each other")
    settings = ledger.DestinationSettings(
        answer_rules={} if no_rules else _rules(rule) if rule else None,
        retry_delays_seconds=[] if no_delays else _delays(delays),
        unauthorized_delays_seconds=_delays(unauthorized_delays),
    )
    if not settings.given():
        raise UsageError("nothing to change: name at least one setting (see --help)")
    _change(destination_id, settings, act(operator, reason))


def wire(
    destination_id: DestinationId,
    *,
    header: Annotated[
        list[str] | None, typer.Option(help="Sent with every request, as in 'x-tenant: 7'; repeatable, replaces all.")
    ] = None,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Send none of its own any more.")] = False,
    bearer_file: Annotated[Path | None, typer.Option(help="File with a bearer token; - reads stdin.")] = None,
    basic_file: Annotated[Path | None, typer.Option(help="File with user:password; - reads stdin.")] = None,
    no_authorization: Annotated[bool, typer.Option("--no-authorization", help="Send no credentials any more.")] = False,
    ca_file: Annotated[Path | None, typer.Option(help="PEM of the CAs to trust instead of the system's.")] = None,
    no_ca: Annotated[bool, typer.Option("--no-ca", help="Trust the system's CAs again.")] = False,
    client_certificate_file: Annotated[Path | None, typer.Option(help="PEM of the certificate to show.")] = None,
    client_key_file: Annotated[Path | None, typer.Option(help="PEM of its key, not encrypted.")] = None,
    no_client_certificate: Annotated[bool, typer.Option("--no-client-certificate", help="Show none any more.")] = False,
    operator: Operator = None,
    reason: OptionalReason = None,
) -> None:
    """Headers, credentials and certificates of its requests. Secrets come from files, and are never shown again."""
    if sum((bearer_file is not None, basic_file is not None, no_authorization)) > 1:
        raise UsageError("--bearer-file, --basic-file and --no-authorization exclude each other")
    if (header and no_headers) or (ca_file and no_ca) or (client_certificate_file and no_client_certificate):
        raise UsageError("an option and its --no- form exclude each other")
    if (client_certificate_file is None) != (client_key_file is None):
        raise UsageError("--client-certificate-file and --client-key-file belong together")
    columns: dict[str, str | None] = {}
    if bearer_file is not None:
        columns |= _authorization("Bearer", _token(bearer_file))
    elif basic_file is not None:
        columns |= _authorization("Basic", _user_and_password(basic_file))
    elif no_authorization:
        columns |= {"authorization_kind": None, "authorization_value": None}
    if ca_file is not None or no_ca:
        columns["ca"] = None if ca_file is None else _read(ca_file)
    if client_certificate_file is not None and client_key_file is not None:
        columns |= {"client_certificate": _read(client_certificate_file), "client_key": _read(client_key_file)}
    elif no_client_certificate:
        columns |= {"client_certificate": None, "client_key": None}
    settings = ledger.DestinationSettings(static_headers={} if no_headers else _headers(header) if header else None)
    if not columns and not settings.given():
        raise UsageError("nothing to change: name at least one setting (see --help)")
    try:
        context_of(TlsSettings(columns.get("ca"), columns.get("client_certificate"), columns.get("client_key")))
    except TlsSettingsError as error:
        raise CommandError(str(error)) from None
    _change(destination_id, settings, act(operator, reason), columns)


def _change(
    destination_id: str,
    settings: ledger.DestinationSettings,
    by: ledger.Act,
    columns: dict[str, str | None] | None = None,
) -> None:
    program = load_settings()
    try:
        with ledger.operator_connection(program.postgres_conninfo) as connection, connection.transaction():
            if settings.given():
                ledger.set_destination(connection, destination_id, settings, subscribe=[], unsubscribe=[], act=by)
            if columns:
                set_credential(connection, destination_id, CredentialChange(columns=columns), by, program.vault)
    except ledger.NoSuchDestinationError as error:
        raise CommandError(f"no destination {error}: see outrider destination list") from None
    except (psycopg.errors.CheckViolation, psycopg.errors.DataError) as error:
        raise CommandError(f"the schema refuses it: {error.diag.message_primary}") from None
    except psycopg.Error as error:
        if error.sqlstate != "OU005":
            raise
        raise CommandError(str(error.diag.message_primary)) from None
    print(f"changed {visible(destination_id)}: workers take it up within seconds")


def _rules(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    try:
        return {key: verdict.value for key, verdict in check_rules({key: word for key, _, word in pairs}).items()}
    except RulesError as error:
        raise UsageError(str(error)) from None


def _delays(text: str | None) -> list[float] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        delays = [float(word) for word in words]
    except ValueError:
        delays = []
    if not 1 <= len(delays) <= DELAYS_MAX or not all(0.01 <= delay <= 604_800 for delay in delays):
        raise UsageError(f"delays {text!r}: write 1 to {DELAYS_MAX} numbers of seconds up to a week, as in 5,30,300")
    return delays


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"header {line!r}: write it as 'x-tenant: 7'")
        headers[name.strip()] = value.strip()
    return headers


def _authorization(kind: str, value: str) -> dict[str, str | None]:
    return {"authorization_kind": kind, "authorization_value": f"{kind} {value}"}


def _token(path: Path) -> str:
    token = _read(path).strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CommandError("--bearer-file: a token is one word of printable ASCII")
    return token


def _user_and_password(path: Path) -> str:
    text = _read(path).removesuffix("\n")
    if ":" not in text or not text.isprintable():
        raise CommandError("--basic-file: write user:password in one line")
    return base64.b64encode(text.encode()).decode()


def _read(path: Path) -> str:
    try:
        return read_named_text(path, FILE_BYTES_MAX)
    except InputFileError as error:
        raise CommandError(str(error)) from None
