"""TLS and SASL as the settings name them: every client against a broker and a database that take nothing else.

The login at the database is the connector's: REPLICATION, and SELECT on the published tables.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not declared so
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from connectors.errors import ConfigurationError
from pipeline.stack.guard import Guard
from pipeline.stack.kafka_server import KafkaServer
from pipeline.stack.ports import HOST, choose_ports, free_ports
from tests.fixtures.components import StartComponent
from tests.support.certificates import Certificates, certificates_for
from tests.support.connector_world import insert_dispatches, wait_until, world_of
from tests.support.tls_front import TlsFront

USER, PASSWORD = "outrider", "a pass;word"
ADMIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SecureBroker:
    """Where clients with credentials connect, and what they trust."""

    bootstrap_servers: str
    certificates: Certificates


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, guard: Guard) -> Iterator[SecureBroker]:
    """A broker with a listener that takes TLS and SCRAM only; the plain one is for making the user."""
    folder = tmp_path_factory.mktemp("secure")
    certificates = certificates_for(HOST, folder)
    data = folder / "kafka"
    data.mkdir()
    port, controller_port = choose_ports(data / "ports", 2)
    (secure_port,) = free_ports(1)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{controller_port},SECURE://{HOST}:{secure_port}",
        "advertised.listeners": f"CLIENTS://{HOST}:{port},SECURE://{HOST}:{secure_port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": certificates.chain,
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
    }
    server = KafkaServer(data, folder / "kafka.log", on_start=guard.end, settings=settings, is_brief=True)
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wish = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin.alter_user_scram_credentials([wish], request_timeout=ADMIN_SECONDS)[USER].result(ADMIN_SECONDS)
        yield SecureBroker(f"{HOST}:{secure_port}", certificates)
    finally:
        server.stop()


@pytest.fixture
def database_front(postgres_dsn: str, broker: SecureBroker) -> Iterator[TlsFront]:
    target = conninfo_to_dict(postgres_dsn)
    with TlsFront(str(target["host"]), int(str(target["port"])), broker.certificates.chain) as front:
        yield front


@pytest.fixture
def secure_values(
    settings_values: dict[str, object], broker: SecureBroker, database_front: TlsFront, role_dsns: dict[str, str]
) -> dict[str, object]:
    return {
        **settings_values,
        "postgres_dsn": make_conninfo(role_dsns["connector"], host=HOST, port=database_front.port),
        "postgres_sslmode": "verify-full",
        "postgres_sslrootcert": broker.certificates.ca,
        "kafka_bootstrap_servers": broker.bootstrap_servers,
        "kafka_security_protocol": "sasl_ssl",
        "kafka_sasl_mechanism": "SCRAM-SHA-512",
        "kafka_sasl_username": USER,
        "kafka_sasl_password": PASSWORD,
        "kafka_ssl_cafile": broker.certificates.ca,
    }


def test_topics_connector_and_worker_use_tls_and_sasl_on_both_sides(
    secure_values: dict[str, object],
    database: str,
    database_front: TlsFront,
    component: StartComponent,
    role_dsns: dict[str, str],
) -> None:
    world = world_of(secure_values)
    world.create_topics()
    (health_port,) = free_ports(1)
    worker_dsn = make_conninfo(role_dsns["worker"], host=HOST, port=database_front.port)
    worker = component("worker", **{**secure_values, "postgres_dsn": worker_dsn, "health_port": health_port})
    with world.connector() as connector, psycopg.connect(database, autocommit=True) as connection:
        world.streaming(connector)
        assert database_front.encrypted >= 2  # the stream, and the session that keeps the turn
        insert_dispatches(connection, 20)
        wait_until(lambda: connector.status.rows >= 20, lambda: f"rows are published ({connector.status})")

        def answer() -> str:
            try:
                with urllib.request.urlopen(f"http://{HOST}:{health_port}/readyz", timeout=10) as response:
                    return str(response.read().decode())
            except OSError as error:
                return f"not ready: {error}"

        wait_until(lambda: not answer().startswith("not ready"), lambda: f"{answer()}\n{worker.log_tail()}")
    assert database_front.turned_away == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kafka_sasl_password": "wrong"}, "Kafka refuses the connection"),
        ({"postgres_sslrootcert": "another"}, "SSL error"),
    ],
)
def test_wrong_credentials_and_unknown_authorities_are_refused_in_one_line(
    secure_values: dict[str, object], tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    another = certificates_for(HOST, tmp_path).ca
    values = {name: another if value == "another" else value for name, value in changes.items()}
    world_of(secure_values).create_topics()
    world = world_of({**secure_values, **values})
    said: list[str] = []
    try:
        with world.connector() as connector:

            def tells() -> bool:
                said[:] = [connector.status.reason]
                return reason in connector.status.reason

            wait_until(tells, lambda: f"it says why ({said})")
    except ConfigurationError as error:
        said.append(str(error))
    assert any(reason in line and "\n" not in line for line in said), said
