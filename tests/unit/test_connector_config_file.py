"""The connector's file: examples can be read, and whatever is wrong is one line that names it."""

from __future__ import annotations

import copy
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from connectors.__main__ import main
from connectors.config import ConnectorConfig
from connectors.config_file import parse_config, read_config
from connectors.errors import ConfigurationError
from connectors.route import ColumnValue, Header, JsonValue, TopicByColumn

ENVIRONMENT = {"SHOP_POSTGRES": "host=db password=secret", "SHOP_KAFKA": "kafka:9092"}
SMALLEST: dict[str, Any] = {
    "postgres": {"conninfo": "host=db", "slot": "shop", "publication": "shop"},
    "kafka": {"bootstrap.servers": "kafka:9092"},
    "connector": {
        "transactional_id": "shop",
        "positions_topic": "p",
        "quarantine_topic": "q",
        "control_topic": "c",
    },
    "route": [{"table": "public.outbox", "topic": "t", "key": "owner", "value": {"column": "body"}}],
}


def example(name: str) -> Path:
    return Path(str(files("connectors").joinpath("examples", name)))


def test_the_examples_can_be_read() -> None:
    config = read_config(example("shop.toml"), ENVIRONMENT)
    assert config.conninfo == ENVIRONMENT["SHOP_POSTGRES"]
    assert config.kafka == {"bootstrap.servers": "kafka:9092"}
    assert config.topics == ("shop.order", "shop.invoice", "shop.quarantine", "shop.control", "shop.positions")
    (route,) = config.routes
    assert route.headers == (Header("id", "id"), Header("traceparent", "trace"))
    (route,) = read_config(example("debezium_outbox.toml"), ENVIRONMENT).routes
    assert route.topics == ("outbox.event.order", "outbox.event.invoice")
    assert route.value == ColumnValue("payload", empty="blank_text_null")


def test_what_the_file_leaves_out_has_the_connectors_own_defaults() -> None:
    config = parse_config(copy.deepcopy(SMALLEST), {})
    expected = ConnectorConfig(
        conninfo="host=db",
        kafka={"bootstrap.servers": "kafka:9092"},
        slot="shop",
        publication="shop",
        routes=config.routes,
        transactional_id="shop",
        positions_topic="p",
        quarantine_topic="q",
        control_topic="c",
    )
    assert config == expected


def test_a_route_may_choose_its_topic_and_hold_several_columns() -> None:
    content = copy.deepcopy(SMALLEST)
    content["route"][0] |= {"topic": {"column": "kind", "topics": ["a", "b"]}, "value": {"columns": ["x", "y"]}}
    (route,) = parse_config(content, {}).routes
    assert route.topic == TopicByColumn("kind", ("a", "b"))
    assert route.value == JsonValue(("x", "y"))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("postgres", "slott"), "x", r"unknown field `slott` - at `\$\.postgres`"),
        (("postgres", "conninfo"), 5, r"Expected `str`, got `int` - at `\$\.postgres\.conninfo`"),
        (("postgres", "conninfo"), "${NOT_THERE}", "postgres.conninfo needs the environment variable NOT_THERE"),
        (("kafka", "sasl.password"), "${NOT_THERE}", "kafka.sasl.password needs the environment variable NOT_THERE"),
        (("connector", "repair"), "perhaps", r"Invalid enum value 'perhaps' - at `\$\.connector\.repair`"),
        (("route",), [], r"there is no \[\[route\]\]"),
        (("route", 0, "table"), "outbox", "'outbox': name the table with its schema"),
        (("route", 0, "key"), None, r"\$\.route\[0\]\.key|it needs topic, key and value"),
        (("route", 0, "topics"), ["t"], "topics belong to event_router"),
        (("route", 0, "event_router"), {}, "topic follows from event_router, so leave it out"),
        (("route", 0, "value"), {}, "value is one column, or a list of columns"),
        (("route", 0, "value"), {"column": "a", "columns": ["b"]}, "value is one column, or a list of columns"),
        (("route", 0, "deletes"), "drop", r"Invalid enum value 'drop' - at `\$\.route\[0\]\.deletes`"),
    ],
)
def test_what_is_wrong_is_named(place: tuple[Any, ...], value: object, message: str) -> None:
    content = copy.deepcopy(SMALLEST)
    holder: Any = content
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = value
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_config(content, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [(b"postgres = [", "is no TOML"), (b"\xff", "is no TOML"), (None, "cannot be read")]
)
def test_the_program_says_what_is_wrong_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None, message: str
) -> None:
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_bytes(text)
    assert main(["--check", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{path}")
    assert message in told
    assert told.count("\n") == 1
