"""Jars by a locked list: fetched once into the cache and verified against the list.

jgo's Python resolver made the lists and fetches their entries; Maven is not needed, and at start no
dependency is resolved. A directory of the cache is named after its list, so that two versions of
the program never share one. Its marker file is written after every jar was verified; later starts
compare only the sizes.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.stack.cache import CACHE_VARIABLE, cache_directory
from pipeline.stack.certificates import trust_system_certificates
from pipeline.stack.download_progress import DownloadProgress, download_progress
from pipeline.stack.errors import StackError
from pipeline.stack.locks import locked

VERIFIED_MARKER = ".verified"
DOWNLOADS_AT_ONCE = 6
DOWNLOAD_TRIES = 4
# Doubled for each further try.
RETRY_PAUSE_SECONDS = 0.5
DOWNLOAD_TIMEOUT_SECONDS = 30
# A first start elsewhere may be fetching the same jars over a slow line.
CACHE_LOCK_SECONDS = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedJar:
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, kw_only=True, slots=True)
class JarList:
    """A lock file beside this module. `name` begins the cache directory, `title` is for people."""

    name: str
    title: str

    @property
    def file(self) -> Path:
        return Path(__file__).with_name(f"{self.name}_jars.lock")

    def read(self) -> list[LockedJar]:
        """The jars of the list."""
        return parse_lock(self.file.read_text(encoding="utf-8"))


class FetchJar(Protocol):
    """Downloads a jar into an empty directory and returns its file."""

    def __call__(self, jar: LockedJar, directory: Path) -> Path: ...


def format_lock(jars: Iterable[LockedJar]) -> str:
    """Text of a lock file: `coordinate size sha256` per line, sorted."""
    lines = sorted(f"{jar.coordinate} {jar.size_bytes} {jar.sha256}" for jar in jars)
    return "\n".join(lines) + "\n"


def parse_lock(text: str) -> list[LockedJar]:
    """Read a lock file. Raises ValueError for a malformed line."""
    jars = []
    for line in text.splitlines():
        coordinate, size, sha256 = line.split(" ")
        group, artifact, version = coordinate.split(":")
        jars.append(LockedJar(group=group, artifact=artifact, version=version, size_bytes=int(size), sha256=sha256))
    return jars


def fetch_from_central(jar: LockedJar, directory: Path) -> Path:
    """Download one jar from Maven Central with jgo. Raises whatever the transfer raises."""
    from jgo.maven import MavenContext, PythonResolver  # here: a warm cache needs no HTTP client

    context = MavenContext(resolver=PythonResolver(), repo_cache=directory, timeout=DOWNLOAD_TIMEOUT_SECONDS)
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    path: Path | None = context.resolver.download(component.artifact())
    if path is None:
        raise FileNotFoundError(jar.coordinate)
    return path


def cached_jars(
    jar_list: JarList, *, cache: Path | None = None, lock_text: str | None = None, fetch: FetchJar = fetch_from_central
) -> list[Path]:
    """Return the files of a list's jars, all in one directory, fetching what the cache does not have.

    Raises StackError when a jar cannot be fetched, or does not match its checksum.
    """
    text = jar_list.file.read_text(encoding="utf-8") if lock_text is None else lock_text
    jars = parse_lock(text)
    root = cache_directory() if cache is None else cache
    directory = root / f"{jar_list.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    paths = [directory / jar.file_name for jar in jars]
    if _is_complete(directory, jars):
        return paths
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{directory.name}.lock", CACHE_LOCK_SECONDS) as held:
            if not held:
                raise StackError(f"another process has been filling {directory} for too long; end it and try again")
            # Whoever held the lock before may have done the work.
            if not _is_complete(directory, jars):
                _fill(directory, jar_list, jars, fetch)
    except OSError as error:
        raise StackError(f"cannot write the cache {root}: {error}; choose another with {CACHE_VARIABLE}") from error
    return paths


def _is_complete(directory: Path, jars: list[LockedJar]) -> bool:
    if not (directory / VERIFIED_MARKER).exists():
        return False
    try:
        return all((directory / jar.file_name).stat().st_size == jar.size_bytes for jar in jars)
    except FileNotFoundError:
        return False


def _fill(directory: Path, jar_list: JarList, jars: list[LockedJar], fetch: FetchJar) -> None:
    for abandoned in directory.glob("fetch-*"):  # by a start that was killed: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    missing = [jar for jar in jars if not _matches(directory / jar.file_name, jar)]
    total_bytes = sum(jar.size_bytes for jar in missing)
    with (
        tempfile.TemporaryDirectory(prefix="fetch-", dir=directory) as scratch,
        trust_system_certificates(),
        download_progress(jar_list.title, len(missing), total_bytes) as progress,
        ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="jar") as pool,
    ):
        jobs = [pool.submit(_fetch_one, jar, directory, Path(scratch), fetch, progress) for jar in missing]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    (directory / VERIFIED_MARKER).touch()


def _fetch_one(jar: LockedJar, directory: Path, scratch: Path, fetch: FetchJar, progress: DownloadProgress) -> None:
    error: Exception | None = None
    for attempt in range(DOWNLOAD_TRIES):
        if attempt:
            time.sleep(RETRY_PAUSE_SECONDS * 2**attempt)
        try:
            # A new directory per try: the file of a broken transfer must not be taken for a whole one.
            path = fetch(jar, Path(tempfile.mkdtemp(dir=scratch)))
            if not _matches(path, jar):
                raise StackError(f"{jar.coordinate} does not have its locked checksum")
            path.replace(directory / jar.file_name)
        # requests' errors are OSErrors; jgo raises RuntimeError for an answer other than 200.
        except (OSError, RuntimeError, StackError) as failure:
            error = failure
        else:
            progress.advance(jar.size_bytes)
            return
    raise StackError(f"cannot fetch {jar.coordinate}: {error}") from error


def _matches(path: Path, jar: LockedJar) -> bool:
    try:
        if path.stat().st_size != jar.size_bytes:
            return False
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False
