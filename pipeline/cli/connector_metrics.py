"""What a running connector shows to Prometheus: its status at the time of asking. Labels are bounded, and never ids."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from connectors.errors import CAUSES
from connectors.status import ConnectorStatus, Outlook

WAL_STATES = ("reserved", "extended", "unreserved", "lost")


class ConnectorMetrics(Collector):
    """Gauges of the slot and of what waits are left out until the watch has seen them."""

    def __init__(self, status: ConnectorStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        counters = {
            "outrider_connector_rows": ("Records committed to Kafka.", status.rows),
            "outrider_connector_bytes": ("Bytes of source messages committed to Kafka.", status.bytes),
            "outrider_connector_transactions": ("Kafka transactions committed.", status.transactions),
            "outrider_connector_quarantined": ("Rows that went to the quarantine topic.", status.quarantined),
            "outrider_connector_unrouted": ("Published changes that no route takes.", status.unrouted),
        }
        for name, (meaning, value) in counters.items():
            yield CounterMetricFamily(name, meaning, value=value)
        reconnects = CounterMetricFamily(
            "outrider_connector_reconnects", "Sessions that ended in a failure, by cause.", labels=["cause"]
        )
        for cause in CAUSES:
            reconnects.add_metric([cause], status.reconnect_causes[cause])
        yield reconnects
        yield HistogramMetricFamily(
            "outrider_connector_commit_seconds",
            "Time from the first row of a Kafka transaction to its commit.",
            buckets=status.commit_seconds.cumulative(),
            sum_value=status.commit_seconds.sum_seconds,
        )
        is_ready, _ = status.ready(time.monotonic())
        yield GaugeMetricFamily("outrider_connector_ready", "1 while rows flow.", value=is_ready)
        yield GaugeMetricFamily(
            "outrider_connector_paused", "1 while an operator lets it rest.", status.state == "paused"
        )
        yield GaugeMetricFamily("outrider_connector_held_keys", "Keys held behind quarantined rows.", status.held_keys)
        yield GaugeMetricFamily("outrider_connector_lsn", "Last stored position in the WAL.", value=status.last_lsn)
        if status.outlook is not None:
            yield from _of_outlook(status, status.outlook)


def _of_outlook(status: ConnectorStatus, outlook: Outlook) -> Iterator[Metric]:
    slot = outlook.slot
    if slot is not None:
        states = GaugeMetricFamily("outrider_connector_slot_wal", "1 for the slot's wal_status.", labels=["wal_status"])
        for state in WAL_STATES:
            states.add_metric([state], slot.wal_status == state)
        yield states
        yield GaugeMetricFamily(
            "outrider_connector_lag_bytes",
            "WAL that is not published yet.",
            value=max(0, slot.server_lsn - status.last_lsn),
        )
        if slot.safe_wal_size is not None:
            yield GaugeMetricFamily(
                "outrider_connector_safe_wal_bytes",
                "WAL that may still be written before the slot is lost.",
                value=slot.safe_wal_size,
            )
    rows = GaugeMetricFamily(
        "outrider_connector_unpublished_rows", "Rows that are not published yet, up to 100 000.", labels=["table"]
    )
    ages = GaugeMetricFamily(
        "outrider_connector_oldest_unpublished_seconds",
        "Age of the oldest row that is not published yet, by the database's clock; 0 where there is none.",
        labels=["table"],
    )
    for table, found in outlook.unpublished.items():
        rows.add_metric([table], found.rows)
        ages.add_metric([table], found.oldest_seconds)
    yield rows
    yield ages
