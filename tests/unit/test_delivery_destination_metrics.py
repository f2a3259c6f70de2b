"""Series of destinations are bounded, and go with their destinations."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from pipeline.delivery.destination_metrics import DestinationMetrics, DestinationStanding


def standing(name, *, in_flight=0, waiting=0, rate_share=1.0, is_open=False, is_throttled=False):
    return DestinationStanding(name, in_flight, waiting, rate_share, is_open, is_throttled)


def shown(standings, named_max):
    registry = CollectorRegistry()
    registry.register(DestinationMetrics(lambda: standings, named_max=named_max))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_each_has_its_series_while_it_is_there():
    standings = [standing("a", in_flight=3, waiting=9), standing('quo"ted', is_open=True, rate_share=0.25)]
    series = shown(standings, 10)
    assert series['outrider_worker_destination_in_flight{destination="a"}'] == 3
    assert series['outrider_worker_destination_waiting{destination="a"}'] == 9
    assert series['outrider_worker_destination_breaker_open{destination="quo\\"ted"}'] == 1
    assert series['outrider_worker_destination_rate_share{destination="quo\\"ted"}'] == 0.25
    standings.clear()
    assert shown(standings, 10) == {}


def test_beyond_the_limit_they_are_one_and_those_that_are_not_well_are_named_first():
    standings = [standing(f"d{n}", in_flight=1, waiting=n, rate_share=1 - n / 1000) for n in range(100)]
    standings.append(standing("ill", is_throttled=True))
    series = shown(standings, 3)
    names = {name.split('"')[1] for name in series}
    assert names == {"ill", "d99", "d98", "(others)"}
    assert series['outrider_worker_destination_in_flight{destination="(others)"}'] == 98
    assert series['outrider_worker_destination_rate_share{destination="(others)"}'] == 1 - 97 / 1000
    assert len(series) == 5 * 4
