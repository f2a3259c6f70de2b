"""Files that somebody names. Of the configuration only regular ones are read, of a command line all that end; none beyond its
bound.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.config_file import read_config
from pipeline.cli.audit_commands import read_anchors
from pipeline.cli.delivery_acts import IDS_BYTES_MAX, read_ids
from pipeline.input_files import InputFileError, read_named_text, read_regular
from pipeline.offsets import plan_file
from pipeline.reconcile.source_file import SOURCE_BYTES_MAX, read_source, read_sources
from pipeline.replay import id_list
from pipeline.replay.plan import read_plan
from pipeline.settings import PREFIX, SECRET_BYTES_MAX, TLS_FILES, load_settings

PATIENCE_SECONDS = 30
KINDS = ("pipe", "device", "socket", "directory")
Read = Callable[[Path], object]


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """A read that waits for a pipe fails instead of waiting for ever."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Makes one that is no regular file; its name fits all that read files."""
    monkeypatch.chdir(tmp_path)  # a socket's name may not be long
    sockets: list[socket.socket] = []

    def make(kind: str) -> Path:
        path = Path("named.toml")
        match kind:
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case "socket":
                sockets.append(socket.socket(socket.AF_UNIX))
                sockets[0].bind(str(path))
            case "directory":
                path.mkdir()
        return path

    yield make
    for one in sockets:
        one.close()


def password_file(path: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"{PREFIX}POSTGRES_PASSWORD_FILE", str(path))
        return load_settings()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "read",
    [
        password_file,
        read_source,
        lambda path: read_sources(path.parent),
        lambda path: read_config(path, {}),
        lambda path: list(id_list.read_ids(path)),
        lambda path: id_list.describe(path, ids=0, unknown=0),
        *(lambda path, name=name: load_settings(**{name: path}) for name in TLS_FILES),
    ],
    ids=["secret", "source", "sources", "connector", "ids of a replay", "their digest", *TLS_FILES],
)
def test_what_is_no_regular_file_is_refused_at_once_in_one_line(
    made: Callable[[str], Path], kind: str, read: Read
) -> None:
    path = made(kind)
    with pytest.raises(Exception, match=r"named\.toml") as caught:
        read(path)
    assert not isinstance(caught.value, OSError)
    assert "\n" not in str(caught.value)
    words = ("regular file", "Is a directory")
    assert any(word in str(caught.value) for word in words), caught.value


def test_a_location_in_a_connectors_file_is_looked_at_too(made: Callable[[str], Path], tmp_path: Path) -> None:
    path = made("pipe")
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
        [postgres]
        conninfo = ""
        slot = "s"
        publication = "p"
        [kafka]
        "bootstrap.servers" = "b:9092"
        "ssl.ca.location" = "{path}"
        [connector]
        transactional_id = "t"
        positions_topic = "a"
        quarantine_topic = "b"
        control_topic = "c"
        [[route]]
        table = "public.outbox"
        topic = "o"
        key = "k"
        value = {{ column = "v" }}
        """
    )
    with pytest.raises(Exception, match=r"config\.toml: kafka\.ssl\.ca\.location is a pipe"):
        read_config(config, {})
    path.unlink()
    path.mkdir()  # of certificates, which librdkafka takes
    assert read_config(config, {}).kafka["ssl.ca.location"] == str(path)


@pytest.mark.parametrize("read", [read_plan, plan_file.read_plan, read_anchors, read_ids])
def test_what_a_command_line_names_ends(made: Callable[[str], Path], read: Read) -> None:
    device = made("device")
    with pytest.raises(Exception, match=r"named\.toml") as caught:
        read(device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("read", "bytes_max"),
    [(password_file, SECRET_BYTES_MAX), (read_source, SOURCE_BYTES_MAX), (read_ids, IDS_BYTES_MAX)],
)
def test_what_is_too_large_is_refused_with_its_bound(tmp_path: Path, read: Read, bytes_max: int) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as file:
        file.truncate(bytes_max + 1)
    with pytest.raises(Exception, match=rf"large\.toml has more than {bytes_max} bytes"):
        read(path)


def test_a_command_line_may_name_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"\xef\xbb\xbfdlv_1\r\ndlv_2\n",))
    writer.start()
    assert read_ids(path) == ["dlv_1", "dlv_2"]
    writer.join()


def test_a_regular_file_is_read_whole_as_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\xc3\xa9")
    assert read_regular(path, 8) == path.read_bytes()
    assert read_named_text(path, 8) == "a\né"
    path.write_bytes(b"a\xff")
    with pytest.raises(InputFileError, match="file is not UTF-8: invalid start byte at byte 1"):
        read_named_text(path, 8)
    with pytest.raises(InputFileError, match="cannot be read: No such file"):
        read_regular(tmp_path / "no file", 8)
