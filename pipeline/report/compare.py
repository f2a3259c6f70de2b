"""What can be found, what each kind means, and whether it is a difference. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """``mend`` names what puts it right, where anything does."""

    name: str
    meaning: str
    is_difference: bool = True
    mend: str | None = None


REPAIR: Final = "outrider reconcile report --repair"
REBUILD: Final = "outrider replay rebuild"
RESET: Final = "outrider connector reset"

KINDS: Final = (
    Kind("not_in_topic", "dispatched by the ledger, and not in the dispatch topic", mend=REPAIR),
    Kind("no_dispatch", "in transport by its state, while no dispatch of it exists", mend=REPAIR),
    Kind("not_in_ledger", "in the dispatch topic, and not in the ledger", mend=REBUILD),
    Kind("duplicate_dispatch", "one dispatch in the topic more than once; workers take one"),
    Kind("attempt_not_in_topic", "attempted by the ledger, and not in the attempts topic", mend=RESET),
    Kind("attempt_not_in_ledger", "in the attempts topic, and not in the ledger", mend=REBUILD),
    Kind("duplicate_attempt", "one attempt in the topic more than once"),
    Kind("no_attempt", "succeeded, while no attempt is on record"),
    Kind("identity_mismatch", "a message whose destination, event or id is not that of its delivery"),
    Kind("body_mismatch", "other bytes than those admitted"),
    Kind("broken_message", "a message that is none of Outrider's"),
    Kind("not_in_audit", "in a topic, passed by the audit's group, and not recorded", mend="outrider offsets plan"),
    Kind("audit_mismatch", "the audit recorded another message at this place"),
    Kind("only_in_audit", "recorded by the audit, and not in the topic at its place"),
    Kind("not_at_receiver", "succeeded, and not in the receiver's list", mend=f"{REPAIR} --force"),
    Kind("unknown_at_receiver", "in the receiver's list, and no delivery of the ledger"),
    Kind("receiver_duplicate", "more than once in the receiver's list"),
    Kind("receiver_ahead", "in the receiver's list before the ledger calls it succeeded", is_difference=False),
    Kind(
        "attempt_rebuilt", "counted by a rebuilt delivery, whose rows of the attempt log stay lost", is_difference=False
    ),
    Kind("not_published_yet", "on the way into a topic, behind the connector's watermark", is_difference=False),
    Kind("not_audited_yet", "on the way into the audit, behind its group's offsets", is_difference=False),
)
_BY_NAME: Final = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings by kind, in the order of KINDS."""

    differences: dict[str, int]
    in_flight: dict[str, int]

    @property
    def is_exact(self) -> bool:
        return not self.differences


def kind_of(name: str) -> Kind:
    return _BY_NAME[name]


def judge(counts: Mapping[str, int]) -> Verdict:
    """Raises KeyError for a kind that is not known: a finding must not be passed over."""
    if strangers := set(counts) - set(_BY_NAME):
        raise KeyError(f"unknown findings: {sorted(strangers)}")
    found = [kind for kind in KINDS if counts.get(kind.name)]
    return Verdict(
        differences={kind.name: counts[kind.name] for kind in found if kind.is_difference},
        in_flight={kind.name: counts[kind.name] for kind in found if not kind.is_difference},
    )
