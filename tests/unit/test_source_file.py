"""A source's file: what it may say, and the one line for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.reconcile.source_file import SourceFileError, is_source_id, parse_source, read_source, read_sources
from tests.support.source_world import CLAIM, CONTENT, DUE, write_source


def parsed(**changes: Any) -> Any:
    content = {key: value for key, value in {**CONTENT, **changes}.items() if value is not None}
    return parse_source("assets", content)


def test_the_documented_file_can_be_read(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    (example,) = (part.split("```")[0] for part in text.split("```toml\n")[1:])
    path = tmp_path / "assets.toml"
    path.write_text(example, encoding="utf-8")
    source = read_source(path)
    assert (source.source_id, source.shard_count, source.interval_seconds) == ("assets", 4, 5)
    assert (source.page_rows, source.pass_rows, source.pass_seconds, source.role) == (200, 10_000, 30, None)


def test_parameters_get_their_types() -> None:
    source = parsed(claim="select %(limit)s, %(refused)s, %(shards)s, %(shard_count)s, 7 %% 2;")
    assert source.claim == (
        "select %(limit)s::integer, %(refused)s::text[], %(shards)s::integer[], %(shard_count)s::integer, 7 %% 2"
    )


def test_one_shard_needs_no_shards() -> None:
    source = parsed(shards=None, claim="select %(limit)s, %(refused)s", due="select %(limit)s", lookup=None)
    assert (source.shard_count, source.lookup) == (1, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"description": None}, "description"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["a", 1]}, "event_types"),
        ({"clame": "x"}, "clame"),
        ({"shards": 0}, "shards"),
        ({"shards": 1025}, "shards"),
        ({"page_rows": 1001}, "page_rows"),
        ({"page_rows": 100, "pass_rows": 99}, "pass_rows is 99, less than a page"),
        ({"interval_seconds": 0}, "interval_seconds"),
        ({"interval_seconds": float("nan")}, "interval_seconds"),
        ({"pass_seconds": float("inf")}, "pass_seconds"),
        ({"claim": " ; "}, "claim is empty"),
        ({"claim": "select %(limit)s"}, "claim must use %(refused)s, %(shard_count)s, %(shards)s"),
        ({"claim": CLAIM + " %(event_ids)s"}, "claim has no parameter %(event_ids)s"),
        ({"due": DUE + "%(refused)s"}, "due has no parameter %(refused)s"),
        ({"due": DUE + " like 'a%'"}, "write a percent sign as %%"),
        ({"due": DUE + " 5 % 3"}, "write a percent sign as %%"),
        ({"due": DUE + " %(limit)d"}, "write a percent sign as %%"),
        ({"due": DUE + "%"}, "write a percent sign as %%"),
        ({"due": DUE + "\0"}, "NUL"),
        ({"lookup": "select 1"}, "lookup must use"),
        ({"cron": "* * * *"}, "has not five fields"),
        ({"cron": "0 0 0 1 1 *"}, "has not five fields"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 * * *", "time_zone": "Europe/Nowhere"}, "Europe/Nowhere"),
        ({"cron": "0 0 * * *", "time_zone": "../../etc/passwd"}, "time_zone"),
        ({"time_zone": "UTC"}, "time_zone belongs to cron"),
    ],
)
def test_what_is_wrong_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceFileError) as wrong:
        parsed(**changes)
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_folder_gives_its_sources_by_name_and_nothing_else(tmp_path: Path) -> None:
    write_source(tmp_path, "b")
    write_source(tmp_path, "a")
    (tmp_path / "README.md").write_text("no source")
    assert list(read_sources(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("name", ["A", "1a", "a b", "a.b", "ä", "a" * 64])
def test_a_file_whose_name_is_no_id_is_named(tmp_path: Path, name: str) -> None:
    assert not is_source_id(name)
    path = write_source(tmp_path, name)
    with pytest.raises(SourceFileError, match="named by its file") as wrong:
        read_sources(tmp_path)
    assert str(path) in str(wrong.value)


def test_a_file_that_is_no_toml_and_a_folder_that_is_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("claim = ")
    with pytest.raises(SourceFileError, match=r"a\.toml is no TOML"):
        read_sources(tmp_path)
    with pytest.raises(SourceFileError, match="OUTRIDER_SOURCES_DIRECTORY"):
        read_sources(tmp_path / "nowhere")
