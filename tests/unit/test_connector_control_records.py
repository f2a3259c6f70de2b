"""Control records: what is folded from them, and what is refused."""

from __future__ import annotations

import pytest

from connectors.control import (
    ControlError,
    ControlState,
    Held,
    Outcome,
    Pause,
    Release,
    Selection,
    Subject,
    encode_subject,
    encode_value,
)
from connectors.errors import ConfigurationError
from connectors.holding import Holding
from connectors.quarantine import (
    MARK_ENTRIES_MAX,
    Mark,
    QuarantinedRow,
    SettledEntries,
    decode_quarantine,
    mark_record,
    quarantine_record,
)
from connectors.router import Record, RowIdentity

WHY = Held(reason="too large", row_id="r1", lsn="0/1")


def subject(kind: str, **more: object) -> bytes:
    return encode_subject(Subject(database="db", slot="s", kind=kind, **more))  # type: ignore[arg-type]


def pause(*, is_paused: bool) -> bytes:
    return encode_value(Pause(is_paused=is_paused, operator="ada", reason="r", at="now"))


def test_the_last_word_about_pausing_counts() -> None:
    state = ControlState("db", "s")
    said = [state.is_paused]
    for key, value in (
        (subject("pause"), pause(is_paused=True)),
        (encode_subject(Subject(database="db", slot="another", kind="pause")), pause(is_paused=False)),
        (subject("pause"), pause(is_paused=False)),
        (subject("pause"), pause(is_paused=True)),
        (subject("pause"), None),
    ):
        state.apply(key, value)
        said.append(state.is_paused)
    assert said == [False, True, True, False, True, False]


def test_a_release_is_open_until_it_is_answered() -> None:
    state = ControlState("db", "s")
    release = Release(selection=Selection(entries=(3,)), operator="ada", reason="r", at="now")
    state.apply(subject("release", release_id="a"), encode_value(release))
    assert list(state.open_releases) == ["a"]
    answered = Release(selection=release.selection, operator="ada", reason="r", at="now", outcome=Outcome(released=1))
    state.apply(subject("release", release_id="a"), encode_value(answered))
    assert not state.open_releases
    assert state.releases == {"a": answered}
    state.apply(subject("release", release_id="a"), None)
    assert not state.releases


def test_a_held_key_is_known_by_table_and_bytes_until_it_is_freed() -> None:
    holding = Holding("control", "db", "s", {}, keys_max=1)
    state = ControlState("db", "s")
    held = holding.hold("t", b"\xff\x00", WHY)
    state.apply(held.key, held.value)
    assert state.held == holding.keys == {("t", b"\xff\x00"): WHY}
    freed = holding.free("t", b"\xff\x00")
    state.apply(freed.key, freed.value)
    assert state.held == holding.keys == {}


def test_no_more_keys_are_held_than_may_be() -> None:
    holding = Holding("control", "db", "s", {}, keys_max=1)
    holding.hold("t", b"a", WHY)
    holding.hold("t", b"a", WHY)
    with pytest.raises(ConfigurationError, match="1 keys are held behind rows in quarantine"):
        holding.hold("t", b"b", WHY)
    with pytest.raises(ConfigurationError, match="too long to be held"):
        Holding("control", "db", "s", {}, keys_max=1).hold("t", b"x" * 20_000, WHY)


@pytest.mark.parametrize(("key", "value"), [(subject("pause"), b"{"), (subject("held"), b'{"reason": 1}')])
def test_a_word_to_this_slot_that_cannot_be_read_is_an_error(key: bytes, value: bytes) -> None:
    with pytest.raises(ControlError, match="cannot be read") as caught:
        ControlState("db", "s").apply(key, value)
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("key", [None, b"{}", b"\xff"])
def test_a_record_that_names_no_slot_is_no_word_to_this_one(key: bytes | None) -> None:
    state = ControlState("db", "s")
    state.apply(key, b"{}")
    assert (state.pause, state.releases, state.held) == (None, {}, {})


def test_a_selection_takes_named_entries_or_what_matches_below_its_end() -> None:
    assert Selection(entries=(1, 3)).takes(3, "t", b"k")
    assert not Selection(entries=(1, 3)).takes(2, "t", b"k")
    chosen = Selection(until=5, table="t", key=b"k")
    assert chosen.takes(4, "t", b"k")
    assert not any([chosen.takes(5, "t", b"k"), chosen.takes(4, "u", b"k"), chosen.takes(4, "t", b"l")])


def test_marks_settle_what_lies_before_them_and_nothing_else() -> None:
    settled = SettledEntries()
    mark = Mark(state="released", entries=(9, 1_000, 3, 70_000, -1), operator="ada", reason="r", at="now")
    settled.add(mark, at=2_000)
    assert [entry for entry in (-1, 0, 3, 8, 9, 10, 1_000, 1_001, 70_000) if entry in settled] == [3, 9, 1_000]


def test_an_entry_says_which_row_it_is_even_where_no_record_could_be_made() -> None:
    identity = RowIdentity(key=b"k", id="r1", columns={"n": "7", "row": "r1"})
    place = {"database": "db", "table": "s.t", "topic": "topic", "reason": "bad", "lsn": 16, "row": 2}
    without = quarantine_record("q", identity=identity, record=None, **place)  # type: ignore[arg-type]
    assert without.key == b"k"
    assert ("id", "r1") in without.headers
    assert decode_quarantine(without.value, dict(without.headers)) == QuarantinedRow(
        **{**place, "lsn": "0/10"},  # type: ignore[arg-type]
        id="r1",
        columns=identity.columns,
    )
    record = Record("topic", b"k", b"value", [("id", b"r1"), ("other", b"x" * 20_000)])
    large = quarantine_record("q", identity=identity, record=record, **place)  # type: ignore[arg-type]
    assert [name for name, _ in large.headers] == ["quarantine_reason", "quarantine_table", "id"]


def test_a_mark_comes_back_as_it_was_and_other_records_are_neither() -> None:
    mark = Mark(state="gone", entries=(1, 2), operator="ada", reason="r", at="now")
    record = mark_record("q", mark)
    assert decode_quarantine(record.value, dict(record.headers)) == mark
    assert decode_quarantine(b"anything", {"quarantine_origin": b"t/0/1"}) is None
    assert decode_quarantine(b"{", {"quarantine_table": b"t"}) is None
    with pytest.raises(ValueError, match="settles 1 to"):
        mark_record("q", Mark(state="gone", entries=(1,) * (MARK_ENTRIES_MAX + 1), operator="", reason="", at=""))
