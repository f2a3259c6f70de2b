"""The command line and environment of a JVM that runs jars from the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.stack.errors import StackError
from pipeline.stack.java import find_java

# Only what a JVM may need: JAVA_TOOL_OPTIONS and the like of the caller are for the caller's programs.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")


def java_command(class_path: Sequence[Path], options: Sequence[str]) -> list[str]:
    """Everything before the main class. Raises StackError when there is no Java, or no class path can hold the jars."""
    java = find_java()
    jars = [str(jar) for jar in class_path]
    if any(os.pathsep in jar for jar in jars):
        raise StackError(f"the cache path must not contain {os.pathsep!r}, which separates jars: {jars[0]}")
    return [str(java.executable), *java.options, *options, "-cp", os.pathsep.join(jars)]


def java_environment() -> dict[str, str]:
    """What a JVM gets of this process's environment."""
    return {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
