"""Input that parsers answer with another error than a wrong letter: nested too deep, a number too long. One named error."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.config_file import read_config
from connectors.control import ControlError, ControlState, Subject, encode_subject
from connectors.errors import ConfigurationError
from connectors.quarantine import MARK_HEADER, decode_quarantine
from pipeline.cli.audit_commands import read_anchors
from pipeline.cli.errors import CommandError
from pipeline.offsets import plan_file
from pipeline.offsets.errors import OffsetsError
from pipeline.reconcile.source_file import SourceFileError, read_source
from pipeline.replay.errors import ReplayError
from pipeline.replay.id_list import LINE_BYTES_MAX, read_ids
from pipeline.replay.plan import read_plan
from pipeline.report.receiver_list import LINE_CHARACTERS_MAX, ReceiverListError, bounded_lines, read_receiver_list
from topics.codecs import RecordError, decode_attempt

NESTED = b'{"later": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
TOML = {"nested": b"a = " + b"[" * 50_000, "long number": b"a = " + b"9" * 5_000, "no text": b"a = '\xff'"}


def test_an_attempt_is_a_record_error() -> None:
    assert isinstance(decode_attempt(NESTED), RecordError)


def test_a_quarantine_record_is_of_neither_kind() -> None:
    assert decode_quarantine(NESTED, {MARK_HEADER: b"settled"}) is None


@pytest.mark.parametrize("key", [NESTED, b'{"database": "\xff"}', b'"\xff"'])
def test_a_control_record_is_nobodys_or_a_control_error(key: bytes) -> None:
    ControlState("db", "s").apply(key, None)
    with pytest.raises(ControlError, match="cannot be read"):
        ControlState("db", "s").apply(encode_subject(Subject(database="db", slot="s", kind="pause")), key)


def test_plans_are_none(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_bytes(NESTED)
    with pytest.raises(ReplayError, match="is no plan"):
        read_plan(file)
    with pytest.raises(OffsetsError, match="is no plan"):
        plan_file.read_plan(file)


@pytest.mark.parametrize("line", [NESTED, b'{"topic":"a","partition":1e999,"chain_seq":1,"hash":"00"}'])
def test_kept_anchors_are_named_by_their_line(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "anchors"
    file.write_bytes(line)
    with pytest.raises(CommandError, match="line 1"):
        read_anchors(file)


@pytest.mark.parametrize("content", TOML.values(), ids=TOML)
def test_toml_files_are_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "wrong.toml"
    file.write_bytes(content)
    with pytest.raises(SourceFileError, match=r"wrong\.toml is (no TOML|not UTF-8)"):
        read_source(file)
    with pytest.raises(ConfigurationError, match=r"wrong\.toml is no TOML"):
        read_config(file, {})


@pytest.mark.parametrize("begin", ["x", "{"])
def test_a_line_of_a_receiver_without_an_end_is_not_read_to_it(begin: str) -> None:
    file = io.StringIO(begin + "x" * 3 * LINE_CHARACTERS_MAX)
    with pytest.raises(ReceiverListError, match="line 1"):
        list(read_receiver_list(bounded_lines(file)))
    assert file.tell() == LINE_CHARACTERS_MAX + 1
    assert list(read_receiver_list(bounded_lines(io.StringIO("a\n\nb")))) == ["a", "b"]


@pytest.mark.parametrize("byte", [b"x", b" ", b"\0"])
def test_a_line_of_ids_without_an_end_is_none(tmp_path: Path, byte: bytes) -> None:
    file = tmp_path / "ids"
    file.write_bytes(b"a\n" + byte * 3 * LINE_BYTES_MAX)
    with pytest.raises(ReplayError, match="line 2 is no delivery's id"):
        list(read_ids(file))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, which stands for a full disk")
def test_output_that_finds_no_room_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", "settings", "sample"],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "outrider: output cannot be written: No space left on device; make room, or write to another place"
    ]
