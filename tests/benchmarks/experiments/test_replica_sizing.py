"""Tests of the simulated fleets: their load, and their figures."""

from itertools import pairwise

from benchmarks.experiments.replica_sizing import ReplicaSizingSettings, draw_arrivals, simulate_point

SETTINGS = ReplicaSizingSettings(seconds=4.0, prefixes=8, prefix_tokens=64, own_tokens=16, output_tokens=4)


def test_load_rises_in_time_at_its_rate_and_is_the_same_each_time() -> None:
    arrivals = [*draw_arrivals(SETTINGS, 100.0)]
    assert all(earlier.arrived_at <= later.arrived_at for earlier, later in pairwise(arrivals))
    assert 350 < len(arrivals) < 450
    assert len({arrival.request.block_hashes for arrival in arrivals}) == 8
    assert arrivals == [*draw_arrivals(SETTINGS, 100.0)]


def test_rate_is_of_each_server() -> None:
    one, two = (simulate_point(SETTINGS, servers, "least", 20.0) for servers in (1, 2))
    assert 1.5 * one.requests_per_second < two.requests_per_second < 2.5 * one.requests_per_second
    assert (two.refused, two.adapter_loads) == (0, 0)
    assert two.hit_percent > 50.0


def test_adapters_are_loaded_where_they_are_needed() -> None:
    settings = ReplicaSizingSettings(seconds=2.0, prefixes=1, prefix_tokens=16, own_tokens=16, output_tokens=4,
                                     adapters=3)
    assert simulate_point(settings, 1, "adapter", 20.0).adapter_loads == 3
