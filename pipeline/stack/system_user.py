"""The unprivileged user that runs PostgreSQL when the stack is started by root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.stack.errors import StackError

CREATED_USER = "outrider_postgres"
# Users that exist for a PostgreSQL server already are used rather than making another.
KNOWN_USERS = (CREATED_USER, "postgres", "embedded_postgres")
CHECK_SECONDS = 10.0


# Root's own place for what that user must reach when the checkout is in a closed folder.
ROOT_PLACE = Path("/var/lib/outrider")


@dataclass(frozen=True, slots=True)
class SystemUser:
    """An entry of the password database."""

    name: str
    uid: int
    gid: int

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments for subprocess that drop every privilege of the caller for this user's."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_reach(self, path: Path) -> bool:
        """Whether this user may pass through every folder above `path`, and enter or run `path` itself.

        The kernel is asked, since modes alone do not tell (ACLs, mount options).
        """
        shell = subprocess.run(
            ["/bin/sh", "-c", 'test -x "$1"', "sh", path],
            check=False,
            capture_output=True,
            cwd="/",
            timeout=CHECK_SECONDS,
            **self.popen_arguments(),
        )
        return shell.returncode == 0


def server_user() -> SystemUser | None:
    """Who must run PostgreSQL: None for ourselves, a system user when we are root.

    Creates a system user when root has none to use. Raises StackError when it cannot.
    """
    if os.geteuid() != 0:
        return None
    for name in KNOWN_USERS:
        if user := _look_up(name):
            return user
    return _create(CREATED_USER)


def root_place() -> Path:
    """Make and return a folder that every user can enter and only root can write."""
    ROOT_PLACE.mkdir(parents=True, exist_ok=True)
    ROOT_PLACE.chmod(0o755)
    return ROOT_PLACE


def open_to_all(tree: Path) -> None:
    """Let every user read the tree, and run what its owner can run, whatever the umask was."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o555 if mode & 0o100 else 0o444))


def _look_up(name: str) -> SystemUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return SystemUser(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def _create(name: str) -> SystemUser:
    useradd = shutil.which("useradd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if useradd is None:
        raise StackError("PostgreSQL must not run as root and there is no useradd: create a system user 'postgres'")
    try:
        subprocess.run(
            [useradd, "--system", "--no-create-home", "--shell", "/bin/false", name],
            check=True,
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
        )
    except subprocess.SubprocessError as error:
        # Another start may have created it a moment before.
        if (user := _look_up(name)) is not None:
            return user
        reason = getattr(error, "stderr", None) or error
        raise StackError(f"PostgreSQL must not run as root, and creating a user for it failed: {reason}") from error
    user = _look_up(name)
    if user is None:
        raise StackError(f"useradd made no user {name}: create a system user 'postgres'")
    return user
