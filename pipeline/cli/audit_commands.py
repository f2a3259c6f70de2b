"""``outrider audit …``: the evidence that lies apart from the ledger: verify, show, export, anchors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit.verify import KeptAnchors, Verified, verify
from pipeline.cli.acting import AsJson
from pipeline.cli.audit_export import export
from pipeline.cli.audit_show import show
from pipeline.cli.errors import CommandError
from pipeline.cli.output import print_columns, print_json, visible
from pipeline.input_files import InputFileError, read_named_text
from pipeline.ledger.audit import newest_anchors, one_moment
from pipeline.ledger.operator import operator_connection
from pipeline.settings import load_settings

ANCHORS_BYTES_MAX = 64 * 1024 * 1024
_SHOWN_FINDINGS = 50


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Evidence apart from the ledger: verify, show, export.")
    group.command("verify")(verify_store)
    group.command("show")(show)
    group.command("export")(export)
    group.command("anchors")(anchors)
    app.add_typer(group, name="audit")


def verify_store(
    *,
    topic: Annotated[str | None, typer.Option(help="Only the chains of this topic.")] = None,
    anchors_file: Annotated[
        Path | None,
        typer.Option(
            "--anchors", help="What `outrider audit anchors` printed earlier, kept elsewhere.", dir_okay=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no recorded row was changed, removed or put in. Exit code 1 where one was, with its place."""
    kept = None if anchors_file is None else read_anchors(anchors_file)
    try:
        with operator_connection(load_settings().postgres_conninfo) as connection, one_moment(connection):
            verified = verify(connection, topic=topic, kept_anchors=kept, progress=_progress)
    except KeyboardInterrupt:
        raise CommandError("interrupted: nothing is said about the whole; the same command begins anew") from None
    if topic is not None and not verified.chains:
        raise CommandError(f"nothing is recorded of topic {visible(topic)}")
    if as_json:
        print_json({"is_intact": verified.is_intact, "rows": verified.rows, **_plain(verified)})
    else:
        _print_verified(verified)
    raise typer.Exit(0 if verified.is_intact else 1)


def anchors() -> None:
    """Print where each chain ends now, one JSON object a line. Kept elsewhere, it proves all that was recorded before."""
    with operator_connection(load_settings().postgres_conninfo) as connection:
        for end in newest_anchors(connection):
            print_json(end)


def read_anchors(path: Path) -> KeptAnchors:
    """Raises CommandError for a line that is no anchor."""
    try:
        lines = read_named_text(path, ANCHORS_BYTES_MAX).splitlines()
    except InputFileError as error:
        raise CommandError(f"--anchors: {error}") from None
    kept: dict[tuple[str, int], dict[int, bytes]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            place = str(given["topic"]), int(given["partition"])
            kept.setdefault(place, {})[int(given["chain_seq"])] = bytes.fromhex(given["hash"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise CommandError(f"--anchors: line {number} of {path} is not one of `outrider audit anchors`") from None
    if not kept:
        raise CommandError(f"--anchors: {path} holds no anchor")
    return kept


def _plain(verified: Verified) -> Mapping[str, object]:
    return {
        "finding_count": verified.finding_count,
        "findings": verified.findings,
        "chains": verified.chains,
        "tombstones": verified.tombstones,
    }


def _print_verified(verified: Verified) -> None:
    print_columns(
        ("TOPIC", "PARTITION", "ROWS", "REMOVED", "LAST LINK", "FINDINGS"),
        [(c.topic, c.partition, c.rows, c.removed_rows, c.tip_seq, c.findings) for c in verified.chains],
    )
    for stone in verified.tombstones:
        print(
            f"{visible(stone.topic)} partition {stone.partition}: links {stone.from_seq} to {stone.to_seq} removed at "
            f"{visible(stone.removed_at)} by {visible(stone.removed_by)}, which keeps {stone.keep_days} days"
        )
    for finding in verified.findings[:_SHOWN_FINDINGS]:
        print(f"outrider: {visible(str(finding))}", file=sys.stderr)
    if verified.finding_count > _SHOWN_FINDINGS:
        print(f"outrider: and {verified.finding_count - _SHOWN_FINDINGS} more: see --json", file=sys.stderr)
    print(
        f"{verified.rows} rows in {len(verified.chains)} chains: "
        + ("intact" if verified.is_intact else f"{verified.finding_count} findings")
    )


def _progress(rows: int) -> None:
    if sys.stderr.isatty():
        print(f"\rverified {rows} rows", end="", file=sys.stderr, flush=True)
    elif rows % 1_000_000 == 0:
        print(f"verified {rows} rows", file=sys.stderr, flush=True)
