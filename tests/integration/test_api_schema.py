"""The running server against the document it serves: schemathesis asks what the document allows, and compares."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from pipeline.admission.openapi import document
from pipeline.admission.operations import OPERATIONS, Operation
from pipeline.core.ids import delivery_identity
from tests.fixtures.databases import fresh_database
from tests.support.api_world import api, caller, make_key
from tests.support.ledger_rows import add_delivery, add_destination, connect

SCHEMA = schemathesis.openapi.from_dict(document())
EXAMPLES = 25


class Served:
    """The API in a thread of its own, since schemathesis waits for answers without an event loop."""

    def __init__(self, dsn: str, key: str) -> None:
        self._dsn, self._key = dsn, key
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.url = ""

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        async def serve() -> None:
            async with api(self._dsn) as url, caller(url, self._key):
                self.url = url
                self._ready.set()
                await asyncio.to_thread(self._stop.wait)

        asyncio.run(serve())


@pytest.fixture(scope="module")
def served(
    postgres_dsn: str, migrated_template: str, login_roles: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """URL and Authorization header."""
    with fresh_database(postgres_dsn, template=migrated_template) as dsn:
        with connect(dsn) as connection:
            add_destination(connection)
            add_delivery(connection, "e", "dead")
            connection.execute(
                "insert into outrider.source (source_id, description, shard_count, can_shadow) values ('assets', 'd', 1, false)"
            )
        role, password = login_roles["api"]
        key = make_key(dsn)
        with Served(psycopg.conninfo.make_conninfo(dsn, user=role, password=password), key) as running:
            yield running.url, f"Bearer {key}"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.operation_id)
def test_the_server_does_what_the_document_says(served: tuple[str, str], operation: Operation) -> None:
    url, authorization = served
    described = SCHEMA[operation.path][operation.method]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=described.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(
            base_url=url,
            headers={"Authorization": authorization},
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    ask()


EVENT = {"specversion": "1.0", "id": "good", "source": "/s", "type": "t", "data": {"n": 1}}
ITEM = {"event": EVENT | {"id": "item"}, "destinations": ["acme"]}
AT_ACME = {"path_parameters": {"destination_id": "acme"}}
# One request of each operation that succeeds: what is made up at random seldom does.
SUCCESSES: dict[str, dict[str, object]] = {
    "admitEvent": {"body": EVENT, "media_type": "application/cloudevents+json", "query": {"destination": ["acme"]}},
    "admitBatch": {"body": [ITEM, ITEM | {"destinations": ["nobody"]}], "media_type": "application/json"},
    "listEvents": {},
    "getEvent": {"path_parameters": {"event_id": "e"}},
    "listDeliveries": {"query": {"destination": "acme"}},
    "getDelivery": {"path_parameters": {"delivery_id": delivery_identity("e", "acme")}},
    "getStatus": {},
    "addDestination": {
        "body": {"destination_id": "new", "url": "http://127.0.0.1:1024/hook", "verify": True},
        "media_type": "application/json",
    },
    "listDestinations": {},
    "getDestination": AT_ACME,
    "changeDestination": AT_ACME | {"body": {"burst": 5}, "media_type": "application/json"},
    "enableDestination": AT_ACME | {"body": {"reason": "test"}, "media_type": "application/json"},
    "disableDestination": AT_ACME | {"body": {"reason": "test"}, "media_type": "application/json"},
    "rotateSecret": AT_ACME | {"body": {}, "media_type": "application/json"},
    "wakeSource": {"path_parameters": {"source": "assets"}},
}


@pytest.mark.parametrize(
    "operation", [o for o in OPERATIONS if o.operation_id in SUCCESSES], ids=lambda operation: operation.operation_id
)
def test_a_success_looks_as_the_document_says(served: tuple[str, str], operation: Operation) -> None:
    url, authorization = served
    case = SCHEMA[operation.path][operation.method].Case(**SUCCESSES[operation.operation_id])
    response = case.call(base_url=url, headers={"Authorization": authorization})
    assert response.status_code == operation.status, response.text
    case.validate_response(response)


def test_only_verification_needs_a_receiver_to_succeed() -> None:
    assert {operation.operation_id for operation in OPERATIONS} - set(SUCCESSES) == {"verifyDestination"}
