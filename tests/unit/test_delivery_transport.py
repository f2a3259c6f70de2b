"""The names that the ordered transport overrides or reads must be there, in the pinned Faust and aiokafka.

A rename would not fail by itself: the override would just never be called, and Faust's own bookkeeping would commit.
"""

from __future__ import annotations

import inspect
from importlib import metadata

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from faust.transport.consumer import Consumer
from faust.transport.consumer import Fetcher as FaustFetcher
from faust.transport.drivers import aiokafka as driver
from mode.threads import ServiceThread

from pipeline.delivery.transport import OrderedConsumer, OrderedConsumerThread, OrderedTransport


def test_the_version_is_the_one_that_was_read():
    assert metadata.version("faust-streaming") == "0.15.3"


@pytest.mark.parametrize(
    ("ours", "base", "names"),
    [
        (
            OrderedConsumer,
            driver.Consumer,
            [
                "__init__",
                "_new_consumer_thread",
                "on_partitions_assigned",
                "on_partitions_revoked",
                "ack",
                "_filter_tps_with_pending_acks",
                "_new_offset",
                "_should_commit",
                "_drain_messages",
                "verify_event_path",
            ],
        ),
        (OrderedConsumerThread, driver.AIOKafkaConsumerThread, ["_create_worker_consumer", "_fetch_records"]),
    ],
)
def test_every_override_overrides_something_with_the_same_parameters(ours, base, names):
    for name in names:
        assert name in vars(ours), f"{name} is not ours"
        theirs = inspect.signature(getattr(base, name)).parameters
        if name != "__init__":
            assert list(inspect.signature(getattr(ours, name)).parameters) == list(theirs), name


def test_no_method_is_overridden_without_being_listed_here():
    added = {
        "note_fetched",
        "admit",
        "is_current",
        "done",
        "unsettled",
        "unsettled_in_all",
        "lag",
        "_current",
        "_is_new_log",
        "_begin_anew",
        "_hand_over",
    }
    for ours, base in ((OrderedConsumer, driver.Consumer), (OrderedConsumerThread, driver.AIOKafkaConsumerThread)):
        own = {name for name, value in vars(ours).items() if inspect.isfunction(value)}
        assert {name for name in own - added if not hasattr(base, name)} == set()
        assert {name for name in own & added if hasattr(base, name)} == set()


def test_the_transport_takes_the_consumer_from_the_class():
    assert "Consumer" in vars(driver.Transport)
    assert OrderedTransport.Consumer is OrderedConsumer


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (Consumer.force_commit, ["_filter_tps_with_pending_acks"]),
        (Consumer._filter_committable_offsets, ["_new_offset", "_should_commit"]),
        (FaustFetcher._fetcher.fun, ["await consumer._drain_messages(self)"]),
        (driver.Consumer._new_consumer_thread, ["AIOKafkaConsumerThread(self"]),
        (driver.AIOKafkaConsumerThread.getmany, ["_fetch_records"]),
        (driver.AIOKafkaConsumerThread._create_consumer, ["_create_worker_consumer"]),
        (AIOKafkaConsumer.__init__, ["self._isolation_level = isolation_level", "self._subscription ="]),
        (AIOKafkaConsumer.start, ["isolation_level=self._isolation_level", "self._coordinator ="]),
        (
            driver.AIOKafkaConsumerThread._create_worker_consumer,
            ["metadata_max_age_ms=conf.consumer_metadata_max_age_ms"],
        ),
        (Fetcher._proc_fetch_request, ["= MemoryRecords(part_data[-1])"]),
        (
            Consumer._drain_messages,
            ["getmany(timeout=1.0)", "callback(message), self.suspend_flow.wait()", "set_read_offset(tp, offset)"],
        ),
        (ServiceThread.__init__, ["thread_loop or asyncio.new_event_loop()"]),
    ],
)
def test_faust_and_the_driver_still_call_what_we_replace(function, calls):
    source = inspect.getsource(inspect.unwrap(function))
    for call in calls:
        assert call in source


def test_the_driver_still_has_what_we_read():
    assert isinstance(SubscriptionState.subscription, property)
    assert isinstance(Subscription.assignment, property)
    assert isinstance(Assignment.tps, property)
    assert callable(Assignment.state_value)
    assert isinstance(TopicPartitionState.position, property)
    assert isinstance(TopicPartitionState.has_valid_position, property)
    assert "self.highwater = " in inspect.getsource(TopicPartitionState.__init__)
    assert "self.generation = " in inspect.getsource(GroupCoordinator.__init__)
