"""A connector's status in Prometheus' terms."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from connectors.postgres.standing import SlotStanding, Unpublished
from connectors.status import ConnectorStatus, Outlook
from pipeline.cli.connector_metrics import ConnectorMetrics


def shown(status: ConnectorStatus) -> list[str]:
    registry = CollectorRegistry()
    registry.register(ConnectorMetrics(status))
    return generate_latest(registry).decode().splitlines()


def test_what_the_watch_has_not_seen_is_left_out() -> None:
    status = ConnectorStatus()
    status.commit_seconds.observe(0.01)
    status.reconnect_causes["kafka"] += 2
    lines = shown(status)
    assert "outrider_connector_ready 0.0" in lines
    assert 'outrider_connector_reconnects_total{cause="kafka"} 2.0' in lines
    assert 'outrider_connector_commit_seconds_bucket{le="0.005"} 0.0' in lines
    assert 'outrider_connector_commit_seconds_bucket{le="0.01"} 1.0' in lines
    assert "outrider_connector_commit_seconds_count 1.0" in lines
    assert not any("lag_bytes" in line or "unpublished" in line for line in lines)


def test_the_slot_and_what_waits_are_shown() -> None:
    slot = SlotStanding(
        active_pid=1,
        plugin="pgoutput",
        database="db",
        wal_status="extended",
        safe_wal_size=None,
        confirmed_lsn=80,
        server_lsn=150,
    )
    status = ConnectorStatus()
    status.enter("paused", "by ada")
    status.last_lsn = 100
    status.outlook = Outlook(slot=slot, unpublished={"s.t": Unpublished(7, is_more=False, oldest_seconds=1.5)})
    lines = shown(status)
    assert "outrider_connector_paused 1.0" in lines
    assert "outrider_connector_lag_bytes 50.0" in lines
    assert 'outrider_connector_slot_wal{wal_status="extended"} 1.0' in lines
    assert 'outrider_connector_slot_wal{wal_status="lost"} 0.0' in lines
    assert 'outrider_connector_unpublished_rows{table="s.t"} 7.0' in lines
    assert 'outrider_connector_oldest_unpublished_seconds{table="s.t"} 1.5' in lines
    assert not any("safe_wal_bytes" in line for line in lines)
    status.outlook = replace(status.outlook, slot=replace(slot, safe_wal_size=4_096))
    assert "outrider_connector_safe_wal_bytes 4096.0" in shown(status)
