"""Reports, plans and results of `outrider offsets`, for people."""

from __future__ import annotations

from datetime import datetime, timedelta

from pipeline.cli.output import print_columns, print_fields, visible
from pipeline.offsets.applying import Applied
from pipeline.offsets.group_standing import Member
from pipeline.offsets.places import NO_MESSAGES, MessageCount
from pipeline.offsets.plan import LedgerOutlook, Plan
from pipeline.offsets.standing_report import GroupReport

MEMBERS_MAX = 20


def print_report(report: GroupReport) -> None:
    print_fields([("group", report.group), ("state", report.state), ("members", _members(report.members))])
    if not report.partitions:
        print("\nit has committed nothing; --topic shows the logs of a topic")
        return
    print()
    print_columns(
        ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "SPAN", "OLDEST UNREAD", "MEMBER"),
        [
            (
                row.topic,
                row.partition,
                row.committed,
                row.log_end,
                row.lag,
                row.span,
                _age(report.read_at, row.oldest_unread_at),
                row.member,
            )
            for row in report.partitions
        ],
    )
    total = sum((row.lag for row in report.partitions if row.lag is not None), NO_MESSAGES)
    print(f"\nunread: {_messages(total)}, counted by reading them; SPAN is the distance in offsets, markers included")
    if not total.is_exact:
        print("counting ended at its limit: --count-max and --count-seconds raise it")
    for row in report.partitions:
        if row.stable_end < row.log_end:
            print(
                f"{row.topic} partition {row.partition}: an open transaction holds back the last "
                f"{row.log_end - row.stable_end} offsets; they are in no lag"
            )
    if any(row.committed is None for row in report.partitions):
        print("partitions without a committed offset are read from where the consumers' own setting says")
    if report.state == "empty":
        print("a group without members may still be used by consumers with assign(), which Kafka does not list")


def print_plan(plan: Plan) -> None:
    print_fields(
        [
            ("group", plan.group),
            ("state", f"{plan.group_state}, {plan.members} members"),
            ("target", plan.target),
            ("operator", plan.operator),
            ("reason", plan.reason),
        ]
    )
    print()
    print_columns(
        ("TOPIC", "PARTITION", "BEFORE", "TARGET", "DELTA", "MESSAGES", "NOTE"),
        [
            (
                move.topic,
                move.partition,
                move.before,
                move.target,
                None if move.delta is None else f"{move.delta:+d}",
                move.messages,
                _notes(move.note, f"clamped from {move.requested}" if move.is_clamped else None),
            )
            for move in plan.moves
        ],
    )
    changed = sum(move.is_change for move in plan.moves)
    print(f"\n{changed} of {len(plan.moves)} partitions change")
    print(f"read again: {_messages(plan.rewound)}")
    print(f"skipped unread: {_messages(plan.skipped)}{'; needs --allow-skip' if plan.skipped.at_most else ''}")
    if not (plan.rewound + plan.skipped).is_exact:
        print(
            "offsets give an upper bound, because markers and compacted records have some: --scan counts, for --scan-seconds"
        )
    if plan.ledger is not None:
        _print_outlook(plan.ledger)
    if plan.members:
        print("\nthe group is active: apply refuses until its members are gone")


def print_applied(done: Applied) -> None:
    after = {(row.topic, row.partition): row.offset for row in done.after}
    print_columns(
        ("TOPIC", "PARTITION", "BEFORE", "AFTER"),
        [(row.topic, row.partition, row.offset, after[row.topic, row.partition]) for row in done.before],
    )
    for row in done.left:
        print(f"{row.topic} partition {row.partition} had nothing committed before, and keeps {row.offset}")
    print(f"\nset and read back; run {done.run_id}, undone by: outrider offsets undo {done.run_id} --reason …")


def _print_outlook(outlook: LedgerOutlook) -> None:
    print("\nthe ledger, as it stands now:")
    if outlook.again_stale.at_most or outlook.again_current.at_most:
        print(f"  read again and stale, so nothing comes of it: {_messages(outlook.again_stale)}")
        print(f"  read again and still to be delivered: {_messages(outlook.again_current)}")
    if outlook.skipped_stale.at_most or outlook.skipped_current.at_most:
        until = "" if outlook.found_until is None else f", until {visible(outlook.found_until)}"
        print(f"  skipped and stale, so nothing is missed: {_messages(outlook.skipped_stale)}")
        print(f"  skipped and found by the reconciler{until}: {_messages(outlook.skipped_current)}")
    if outlook.broken:
        print(f"  among them no dispatches of known deliveries: {outlook.broken}")


def _messages(count: MessageCount) -> str:
    return f"{count} message{'' if count == MessageCount(1, 1) else 's'}"


def _members(members: tuple[Member, ...]) -> str:
    if not members:
        return "none"
    more = len(members) - MEMBERS_MAX
    return f"{len(members)}: " + ", ".join(map(str, members[:MEMBERS_MAX])) + (f", and {more} more" if more > 0 else "")


def _age(now: datetime, then: datetime | None) -> str | None:
    return None if then is None else f"{timedelta(seconds=max(0, round((now - then).total_seconds())))} old"


def _notes(*notes: str | None) -> str:
    return "; ".join(note for note in notes if note)
