"""Class data sharing for the broker: its JVM maps classes that are read and checked already, and starts with half the work.

The archive is made once for each Java and list of jars, in the cache beside them: a JVM writes it when it ends (JEP 350; from
Java 25 on JEP 514, which does not build on an archive of the Java's own). One that does not fit any more is passed over by the
JVM in silence, so a start never depends on it.
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


def archive_path(directory: Path, java: Java) -> Path:
    """Where the archive for this Java is. An upgrade in place changes size or time of the executable."""
    executable = java.executable.resolve()
    status = executable.stat()
    identity = f"{executable}\0{java.major}\0{status.st_size}\0{status.st_mtime_ns}"
    return directory / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def sharing_options(java: Java, directory: Path, run_once: Callable[[Path, Sequence[str]], None]) -> list[str]:
    """JVM options to use the archive, which is made first if need be; none where that cannot be.

    ``run_once`` gets a new folder and JVM options, and runs the program to its orderly end. It may raise StackError.
    """
    archive = archive_path(directory, java)
    try:
        if not archive.exists():
            with locked(directory / "classes.lock", LOCK_SECONDS) as held:
                # Whoever held the lock before may have done the work.
                if held and not archive.exists():
                    _make(java, archive, run_once)
        is_usable = archive.stat().st_size > 0
    except (OSError, StackError):
        # A cache that is for reading only, or no room: the start that wanted the archive says so if it fails as well.
        return []
    if not is_usable:
        return []
    if java.major >= AOT_CACHE_MAJOR:
        return [f"-XX:AOTCache={archive}", "-XX:AOTMode=auto", *QUIET_AOT_OPTIONS]
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *QUIET_OPTIONS]


def _make(java: Java, archive: Path, run_once: Callable[[Path, Sequence[str]], None]) -> None:
    for abandoned in archive.parent.glob("classes-*/"):  # by a start that was killed: we hold the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        if java.major >= AOT_CACHE_MAJOR:
            options = [f"-XX:AOTCacheOutput={made}", *QUIET_AOT_OPTIONS]
        else:
            options = [f"-XX:ArchiveClassesAtExit={made}", *QUIET_OPTIONS]
        run_once(Path(scratch) / "run", options)
        if not made.exists():
            made.touch()  # a JVM that cannot make one: not asked again
        made.replace(archive)
