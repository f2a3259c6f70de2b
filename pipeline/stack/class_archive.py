"""Class data sharing for the broker: its JVM maps classes that are read and checked already, and starts with half the work.

The archive is made once for each Java and list of jars, in the cache beside them: a JVM writes it when it ends (JEP 350; from
Java 25 on JEP 514, which does not build on an archive of the Java's own). One that does not fit any more is passed over by the
JVM in silence. One that lacks a part, as a full disk or a power failure may leave it, crashes the JVM at each start, since it maps
what it has not looked at. So the file's name has the hash of its content, and only an archive that fits its name is used.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.stack.errors import StackError
from pipeline.stack.java import Java
from pipeline.stack.locks import locked

# Another process makes the archive meanwhile: about as long as two starts take.
LOCK_SECONDS = 60.0
AOT_CACHE_MAJOR = 25
QUIET_OPTIONS = ("-Xlog:cds*=off", "-Xlog:class+path=off")
QUIET_AOT_OPTIONS = ("-Xlog:aot*=off", *QUIET_OPTIONS)


def archive_name(java: Java) -> str:
    """How the name of the archive for this Java begins. An upgrade in place changes size or time of the executable."""
    executable = java.executable.resolve()
    status = executable.stat()
    identity = f"{executable}\0{java.major}\0{status.st_size}\0{status.st_mtime_ns}"
    return f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def sharing_options(java: Java, directory: Path, run_once: Callable[[Path, Sequence[str]], None]) -> list[str]:
    """JVM options to use the archive, which is made first if need be; none where that cannot be.

    ``run_once`` gets a new folder and JVM options, and runs the program to its orderly end. It may raise StackError.
    """
    try:
        name = archive_name(java)
        archive = _whole_archive(directory, name)
        if archive is None:
            with locked(directory / "classes.lock", LOCK_SECONDS) as held:
                # Whoever held the lock before may have done the work.
                archive = _whole_archive(directory, name)
                if held and archive is None:
                    archive = _make(java, directory, name, run_once)
        if archive is None or archive.stat().st_size == 0:
            return []
    except (OSError, StackError):
        # A cache that is for reading only, or no room: the start that wanted the archive says so if it fails as well.
        return []
    if java.major >= AOT_CACHE_MAJOR:
        return [f"-XX:AOTCache={archive}", "-XX:AOTMode=auto", *QUIET_AOT_OPTIONS]
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *QUIET_OPTIONS]


def _whole_archive(directory: Path, name: str) -> Path | None:
    for archive in directory.glob(f"{name}-*.jsa"):
        if archive.name == _full_name(name, archive):
            return archive
    return None


def _full_name(name: str, archive: Path) -> str:
    with archive.open("rb") as file:
        return f"{name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}.jsa"


def _make(java: Java, directory: Path, name: str, run_once: Callable[[Path, Sequence[str]], None]) -> Path:
    for abandoned in directory.glob("classes-*/"):  # by a start that was killed: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    for damaged in directory.glob(f"{name}*.jsa"):
        damaged.unlink()
    with tempfile.TemporaryDirectory(prefix="classes-", dir=directory) as scratch:
        made = Path(scratch) / "classes.jsa"
        if java.major >= AOT_CACHE_MAJOR:
            options = [f"-XX:AOTCacheOutput={made}", *QUIET_AOT_OPTIONS]
        else:
            options = [f"-XX:ArchiveClassesAtExit={made}", *QUIET_OPTIONS]
        run_once(Path(scratch) / "run", options)
        if not made.exists():
            made.touch()  # a JVM that cannot make one: not asked again
        return made.replace(directory / _full_name(name, made))
