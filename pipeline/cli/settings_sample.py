"""The documented sample of all settings, made from the code that reads them. Pure."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from pipeline.settings import FILE_SUFFIX, PREFIX, Settings, secret_fields

LINE_LENGTH = 100
HEAD = """\
# Settings of Outrider, with their defaults. Made by `outrider settings sample`.
#
# Take out the # before a name to set it. Every component reads the same names from its environment; what it does not
# use it ignores. A secret may come from a file: OUTRIDER_POSTGRES_PASSWORD_FILE=/run/secrets/postgres_password
# `outrider settings check` says what is wrong, and names variables that no setting has.
"""
_SECTION = re.compile(r"^    # --- (?P<title>.+?) -+$")
_FIELD = re.compile(r"^    (?P<name>[a-z_]+): ")


def settings_sample() -> str:
    """The whole file, ending in a newline."""
    parts = [HEAD]
    for title, names in sections():
        parts.append(f"\n# --- {title} {'-' * (LINE_LENGTH - len(title) - 7)}\n")
        parts += [_entry(name, Settings.model_fields[name]) for name in names]
    return "".join(parts)


def sections() -> list[tuple[str, list[str]]]:
    """Titles with their settings, in the order of the class. Raises RuntimeError where a setting has no section."""
    found: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(Settings).splitlines():
        if section := _SECTION.match(line):
            found.append((section["title"], []))
        elif (field := _FIELD.match(line)) and field["name"] in Settings.model_fields:
            if not found:
                raise RuntimeError(f"setting {field['name']} stands before the first section")
            found[-1][1].append(field["name"])
    if sum(len(names) for _, names in found) != len(Settings.model_fields):
        raise RuntimeError("a setting is missing in the sections")
    return found


def _entry(name: str, field: FieldInfo) -> str:
    variable = PREFIX + name.upper()
    lines = ["", f"# {field.description}"]
    limits = _limits(field)
    if limits:
        lines.append(f"# {limits}")
    if name in secret_fields(Settings):
        lines.append(f"# Or from a file: {variable}{FILE_SUFFIX}")
    lines.append(f"#{variable}={_default(field.default)}")
    return "\n".join(lines) + "\n"


def _limits(field: FieldInfo) -> str:
    choices = next((get_args(part) for part in _parts(field.annotation) if get_origin(part) is Literal), ())
    if choices:
        return "One of: " + ", ".join(str(choice) for choice in choices)
    words = []
    for limit in field.metadata:
        match limit:
            case Ge():
                words.append(f"at least {_number(limit.ge)}")
            case Gt():
                words.append(f"more than {_number(limit.gt)}")
            case Le():
                words.append(f"at most {_number(limit.le)}")
            case Lt():
                words.append(f"less than {_number(limit.lt)}")
    return ", ".join(words).capitalize()


def _parts(annotation: Any) -> tuple[Any, ...]:
    return (annotation, *get_args(annotation))


def _number(value: object) -> str:
    return f"{value:,}".replace(",", "_") if isinstance(value, int) and value >= 10_000 else str(value)


def _default(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if value is None:
        return ""
    if isinstance(value, Path | str | int | float):
        return str(value)
    raise RuntimeError(f"no text for a default of {type(value).__name__}")
