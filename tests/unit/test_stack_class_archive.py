"""Class data sharing: made once, used from then on, and never in the way of a start."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.stack.class_archive import archive_name, sharing_options
from pipeline.stack.errors import StackError
from pipeline.stack.java import Java, bundled_java, find_java, java_major


class Program:
    """Stands for a broker that is run once."""

    def __init__(self, content: bytes | None = b"classes", error: Exception | None = None) -> None:
        self._content = content
        self._error = error
        self.runs = 0

    def __call__(self, folder: Path, options: Sequence[str]) -> None:
        self.runs += 1
        assert not folder.exists()
        if self._error is not None:
            raise self._error
        if self._content is not None:
            (option,) = (option for option in options if option.startswith("-XX:"))
            Path(option.partition("=")[2]).write_bytes(self._content)


@pytest.fixture
def java(tmp_path: Path) -> Java:
    executable = tmp_path / "bin" / "java"
    executable.parent.mkdir()
    executable.write_text("17")
    return Java(executable, 17)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.mark.parametrize(("major", "option"), [(17, "-XX:SharedArchiveFile="), (25, "-XX:AOTCache=")])
def test_it_is_made_once_and_nothing_else_is_left(java: Java, cache: Path, major: int, option: str) -> None:
    java, program = replace(java, major=major), Program()
    (cache / "classes-abandoned" / "run").mkdir(parents=True)
    first, second = (sharing_options(java, cache, program) for _ in range(2))
    assert first == second
    (archive,) = cache.glob(f"{archive_name(java)}-*.jsa")
    assert first[0] == f"{option}{archive}"
    assert program.runs == 1
    assert {path.name for path in cache.iterdir()} == {archive.name, "classes.lock"}


@pytest.mark.parametrize("content", [b"clas", b"", b"cla\0\0\0\0"], ids=["truncated", "empty", "zeros"])
def test_a_damaged_one_is_made_anew(java: Java, cache: Path, content: bytes) -> None:
    whole = sharing_options(java, cache, Program())
    (archive,) = cache.glob("*.jsa")
    archive.write_bytes(content)
    program = Program()
    assert sharing_options(java, cache, program) == whole
    assert program.runs == 1
    assert archive.read_bytes() == b"classes"


def test_a_damaged_one_that_cannot_be_made_anew_is_not_used(java: Java, cache: Path) -> None:
    sharing_options(java, cache, Program())
    (archive,) = cache.glob("*.jsa")
    archive.write_bytes(b"clas")
    assert sharing_options(java, cache, Program(error=OSError("read-only file system"))) == []


def test_a_java_that_makes_none_is_asked_once(java: Java, cache: Path) -> None:
    program = Program(content=None)
    assert [sharing_options(java, cache, program) for _ in range(2)] == [[], []]
    assert program.runs == 1


@pytest.mark.parametrize("error", [StackError("did not start"), OSError("no space left on device")])
def test_what_fails_is_tried_again_by_the_next_start(java: Java, cache: Path, error: Exception) -> None:
    assert sharing_options(java, cache, Program(error=error)) == []
    assert sharing_options(java, cache, Program()) != []


def found_javas() -> list[Java]:
    bundled = bundled_java()
    javas = [find_java()] if bundled is None else [find_java(), Java(bundled, java_major(bundled) or 0)]
    return list({java.executable: java for java in javas}.values())


@pytest.mark.parametrize("java", found_javas(), ids=lambda java: f"Java {java.major}")
def test_an_archive_that_does_not_fit_is_passed_over_in_silence(java: Java, tmp_path: Path) -> None:
    options = sharing_options(java, tmp_path, Program(content=b"of another Java"))
    done = subprocess.run([java.executable, *options, "-version"], capture_output=True, text=True, check=True)
    plain = subprocess.run([java.executable, "-version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr.replace("mixed mode, sharing", "mixed mode"))


def test_each_java_has_its_own(java: Java) -> None:
    before = archive_name(java)
    java.executable.write_text("another")
    assert archive_name(java) != before
