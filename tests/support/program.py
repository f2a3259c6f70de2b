"""The program ``outrider`` in this process, on a test's database."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest

from pipeline import cli
from pipeline.settings import PREFIX


@dataclass(frozen=True, slots=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Outrider = Callable[..., Result]


def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **settings: object) -> Outrider:
    """A function that runs one command line with exactly these settings."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(PREFIX)]:
                patch.delenv(name)
            for name, value in settings.items():
                patch.setenv(PREFIX + name.upper(), str(value))
            patch.setattr("sys.argv", ["outrider", *arguments])
            if stdin is not None:
                patch.setattr("sys.stdin", StringIO(stdin))
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    return run
