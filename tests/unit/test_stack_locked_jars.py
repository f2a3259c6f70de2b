"""The jar cache: verified once, cheap afterwards, safe for two starts at once."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from pipeline.stack import locked_jars
from pipeline.stack.errors import StackError
from pipeline.stack.kafka_jars import CONNECT, DEBEZIUM, KAFKA
from pipeline.stack.locked_jars import JarList, LockedJar, cached_jars, format_lock, parse_lock

CONTENT = {f"part-{number}": f"bytes of {number}".encode() for number in range(8)}


def jar_of(artifact: str, content: bytes) -> LockedJar:
    return LockedJar(
        group="org.example",
        artifact=artifact,
        version="1.0",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


LOCK = format_lock(jar_of(artifact, content) for artifact, content in CONTENT.items())


class Source:
    """A repository in memory that counts what is fetched from it."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        self.content = CONTENT if content is None else content
        self.fetched: list[str] = []

    def __call__(self, jar: LockedJar, directory: Path) -> Path:
        self.fetched.append(jar.artifact)
        path = directory / "download"
        path.write_bytes(self.content[jar.artifact])
        return path


def refuse(jar: LockedJar, directory: Path) -> Path:
    raise AssertionError(f"{jar.artifact} is fetched again")


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_jars, "RETRY_PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize("jar_list", [KAFKA, CONNECT, DEBEZIUM], ids=lambda jar_list: jar_list.name)
def test_lock_file_is_read_as_it_was_written(jar_list: JarList) -> None:
    assert format_lock(parse_lock(LOCK)) == LOCK
    text = jar_list.file.read_text()
    assert format_lock(parse_lock(text)) == text


def test_locked_broker_is_of_one_version_and_can_log() -> None:
    jars = KAFKA.read()
    assert len({jar.version for jar in jars if jar.group == "org.apache.kafka"}) == 1
    assert {"kafka_2.13", "kafka-clients", "log4j-slf4j-impl", "log4j-core"} <= {jar.artifact for jar in jars}
    assert len({jar.file_name for jar in jars}) == len(jars)


def test_locked_worker_and_plugin_are_of_one_version_each_and_share_no_jar() -> None:
    worker, plugin = CONNECT.read(), DEBEZIUM.read()
    assert len({jar.version for jar in worker if jar.group == "org.apache.kafka"}) == 1
    assert len({jar.version for jar in plugin if jar.group == "io.debezium"}) == 1
    assert {"connect-runtime", "log4j-slf4j-impl", "log4j-core"} <= {jar.artifact for jar in worker}
    assert "debezium-connector-postgres" in {jar.artifact for jar in plugin}
    together = [*worker, *plugin]
    assert len({(jar.group, jar.artifact) for jar in together}) == len(together)


def test_second_start_fetches_nothing(tmp_path: Path) -> None:
    source = Source()
    first = cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=source)
    assert sorted(source.fetched) == sorted(CONTENT)
    assert [path.read_bytes() for path in first] == list(CONTENT.values())
    assert cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=refuse) == first


def test_wrong_checksum_is_refused_and_leaves_no_jar(tmp_path: Path) -> None:
    forged = Source({**CONTENT, "part-3": b"bytes of X"})
    with pytest.raises(StackError, match=r"part-3.*checksum"):
        cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=forged)
    assert not list(tmp_path.rglob("part-3-*.jar"))
    assert cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=Source())


def test_interrupted_fetch_goes_on_where_it_stopped(tmp_path: Path) -> None:
    broken = Source({name: content for name, content in CONTENT.items() if name != "part-7"})
    with pytest.raises(KeyError):
        cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=broken)
    present = {path.name.removesuffix("-1.0.jar") for path in tmp_path.rglob("part-*.jar")}
    source = Source()
    cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=source)
    assert set(source.fetched) == set(CONTENT) - present


def test_truncated_jar_is_fetched_again(tmp_path: Path) -> None:
    paths = cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=Source())
    paths[2].write_bytes(b"")
    source = Source()
    cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=source)
    assert source.fetched == ["part-2"]


def test_failed_transfer_is_tried_again_and_reported_in_one_line(tmp_path: Path) -> None:
    tries: list[str] = []

    def unreachable(jar: LockedJar, directory: Path) -> Path:
        tries.append(jar.artifact)
        raise ConnectionError("no route")

    with pytest.raises(StackError, match=r"^cannot fetch org\.example:part-\d:1\.0: no route$"):
        cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=unreachable)
    assert max(map(tries.count, set(tries))) == locked_jars.DOWNLOAD_TRIES


def test_two_starts_at_once_fetch_each_jar_once(tmp_path: Path) -> None:
    source, results = Source(), []
    both = threading.Barrier(2)

    def start() -> None:
        both.wait()
        results.append(cached_jars(KAFKA, cache=tmp_path, lock_text=LOCK, fetch=source))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]
    assert sorted(source.fetched) == sorted(CONTENT)
