"""Settings of the Faust application, and Kafka's security in its terms."""

from __future__ import annotations

import pytest

from pipeline.delivery.app import POLL_RECORDS, STREAM_BUFFER_EVENTS, broker_credentials, build_app
from pipeline.delivery.transport import OrderedTransport
from pipeline.settings import Settings
from topics.security import KafkaConnection


async def test_the_settings_that_keep_messages():
    app, topic = build_app(Settings(topic_prefix="p", kafka_bootstrap_servers="h1:1, h2:2", worker_id="w1"))
    conf = app.conf
    assert isinstance(app.transport, OrderedTransport)
    assert topic.get_topic_name() == "p.dispatch"
    assert conf.id == "p.delivery"
    assert [f"{url.host}:{url.port}" for url in app.transport.url] == ["h1:1", "h2:2"]
    assert conf.stream_wait_empty is False
    assert conf.table_standby_replicas == 0
    assert conf.topic_allow_declare is False
    assert conf.topic_disable_leader is True
    assert conf.web_enabled is False
    assert conf.processing_guarantee.value == "at_least_once"
    assert conf.consumer_group_instance_id == "w1"
    assert POLL_RECORDS * 5 <= STREAM_BUFFER_EVENTS


@pytest.mark.parametrize("seconds", [1.0, 10.0, 300.0])
async def test_any_session_timeout_leaves_the_others_in_order(seconds):
    app, _ = build_app(Settings(worker_session_timeout_seconds=seconds))
    assert app.conf.broker_heartbeat_interval < app.conf.broker_session_timeout < app.conf.broker_request_timeout


async def test_a_worker_without_a_name_is_no_static_member():
    app, _ = build_app(Settings())
    assert app.conf.consumer_group_instance_id is None


def test_plaintext_needs_no_credentials():
    assert broker_credentials(KafkaConnection(bootstrap_servers="h:1")) is None


@pytest.mark.parametrize(("protocol", "expected"), [("sasl_plaintext", "SASL_PLAINTEXT"), ("sasl_ssl", "SASL_SSL")])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl(protocol, expected, mechanism):
    connection = KafkaConnection(
        bootstrap_servers="h:1",
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_username="u",
        sasl_password="p",
    )
    credentials = broker_credentials(connection)
    assert (credentials.username, credentials.password) == ("u", "p")
    assert (credentials.mechanism.value, credentials.protocol.value) == (mechanism, expected)
    assert (credentials.ssl_context is not None) is (protocol == "sasl_ssl")
    assert "p'" not in repr(credentials)


def test_tls():
    credentials = broker_credentials(KafkaConnection(bootstrap_servers="h:1", security_protocol="ssl"))
    assert credentials.protocol.value == "SSL"
    assert credentials.context.check_hostname is True
