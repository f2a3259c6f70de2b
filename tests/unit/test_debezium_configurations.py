"""The shipped configurations of real Debezium say the same as the routes of our own connector."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from connectors.debezium.profile import event_router_route
from connectors.route import JsonValue
from pipeline.cli.run_connector import outbox_routes
from pipeline.settings import load_settings

DISPATCH, ATTEMPTS = outbox_routes(load_settings(postgres_dsn="host=db"))


def shipped(name: str) -> dict[str, str]:
    posted = json.loads(files("connectors.debezium").joinpath(f"{name}.json").read_text())
    assert posted["name"] == name
    config: dict[str, str] = posted["config"]
    assert all(isinstance(value, str) for value in config.values())
    return config


@pytest.mark.parametrize(
    ("name", "table"), [("outrider-dispatch", DISPATCH.name), ("outrider-attempts", ATTEMPTS.name)]
)
def test_each_reads_its_table_from_the_publication_and_holds_no_secret(name: str, table: str) -> None:
    config, settings = shipped(name), load_settings(postgres_dsn="host=db")
    assert config["table.include.list"] == table
    assert config["publication.name"] == settings.connector_publication
    assert config["exactly.once.support"] == "required"
    assert config["slot.name"] == config["topic.prefix"] == name.replace("-", "_debezium_")
    assert config["database.password"].startswith("${env:")


def test_the_event_router_makes_the_dispatch_routes_records() -> None:
    config = shipped("outrider-dispatch")
    router = {name: value for name, value in config.items() if name.startswith("transforms.")}
    route = event_router_route(*DISPATCH.name.split("."), router)
    assert (route.topic, route.key, route.value) == (DISPATCH.topic, DISPATCH.key, DISPATCH.value)
    assert [(h.name, h.column) for h in route.headers] == [(h.name, h.column) for h in DISPATCH.headers]


def test_the_transformations_make_the_attempts_routes_records() -> None:
    config = shipped("outrider-attempts")
    assert isinstance(ATTEMPTS.value, JsonValue)
    names = zip(
        config["transforms.headers.headers"].split(","), config["transforms.headers.fields"].split(","), strict=True
    )
    assert list(names) == [(header.name, header.column) for header in ATTEMPTS.headers]
    assert config["transforms.key.fields"] == config["transforms.destination.field"] == ATTEMPTS.key
    assert config["transforms.topic.replacement"] == ATTEMPTS.topic
    # Its value is the whole row, so no member that ours has may be missing there.
    assert "column.include.list" not in config
