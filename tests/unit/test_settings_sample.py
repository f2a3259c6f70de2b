"""The sample file is what the code says, and setting what it shows changes nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from pipeline.cli.settings_sample import sections, settings_sample
from pipeline.settings import FILE_SUFFIX, PREFIX, Settings, load_settings, secret_fields

ROOT = Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"^#(OUTRIDER_[A-Z_]+)=(.*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


def test_the_file_in_the_repository_is_what_the_code_says() -> None:
    assert (ROOT / "outrider.env.example").read_text() == settings_sample(), (
        "run: outrider settings sample > outrider.env.example"
    )


def test_every_setting_is_in_it_once() -> None:
    names = [name for name, _ in ENTRY.findall(settings_sample())]
    assert names == [PREFIX + name.upper() for name in Settings.model_fields]


def test_every_setting_stands_in_a_section_with_its_meaning() -> None:
    assert [name for _, names in sections() for name in names] == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"# {field.description}\n" in settings_sample()


def test_every_secret_is_shown_with_its_file() -> None:
    sample = settings_sample()
    secrets = secret_fields(Settings)
    assert "postgres_password" in secrets
    for name in Settings.model_fields:
        assert (f"{PREFIX}{name.upper()}{FILE_SUFFIX}" in re.findall(r"# Or from a file: (\S+)", sample)) == (
            name in secrets
        )


def test_setting_every_default_as_it_is_shown_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = load_settings()
    for name, value in ENTRY.findall(settings_sample()):
        if value:
            monkeypatch.setenv(name, value)
    assert load_settings() == defaults


def test_a_setting_without_a_default_is_shown_empty() -> None:
    shown = dict(ENTRY.findall(settings_sample()))
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        assert (shown[PREFIX + name.upper()] == "") == (default is None)


def test_the_defaults_are_those_of_production() -> None:
    shown = dict(ENTRY.findall(settings_sample()))
    assert shown["OUTRIDER_TOPIC_REPLICATION_FACTOR"] == "3"
    assert shown["OUTRIDER_TOPIC_MIN_INSYNC_REPLICAS"] == "2"


def test_limits_and_choices_are_told() -> None:
    sample = settings_sample()
    assert "# One of: disable, prefer, require, verify-ca, verify-full\n" in sample
    assert "# At least 1, at most 100\n" in sample


def test_a_line_is_a_comment_or_empty_so_that_the_file_sets_nothing_by_itself() -> None:
    assert all(not line or line.startswith("#") for line in settings_sample().splitlines())
