"""Simulation of a trace on several replicas."""

import json
import re
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduling.recordings import record_busy_simulation

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.request import ADAPTER, LoadableResource, Request, hash_blocks
from router.simulation import replicas
from router.simulation.replicas import ReplicaSettings, format_replica_table, simulate_replicas
from router.simulation.routing import ROUTING_POLICIES
from router.simulation.run_stats import RunStats
from router.simulation.simulate import SimulationCase
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import RequestArrival, WorkloadTrace

MODEL_INFO = ModelInfo("none", "cpu", "none", 512, 4096, 16, 200)
TIMING_PROFILE = TimingProfile((0.01, 0.001, 1e-5, 1e-12), {(False, -7): [1.0, 1.4, 0.7], (True, -6): [1.0, 2.0]})


def make_arrival(number, at, prompt=40, output=6, *, prefix=None, adapter=None):
    hashes = () if prefix is None else hash_blocks(f"{prefix}".encode(), range(prompt // 16), 1)
    request = Request(f"{number}", (0,) * prompt, output, cache_namespace=b"x", block_hashes=hashes,
                      adapter=None if adapter is None else LoadableResource(ADAPTER, adapter))
    return RequestArrival(at, request, output)


def make_case(arrivals, **config):
    return SimulationCase(WorkloadTrace([*arrivals]), TIMING_PROFILE, RouterConfig(**config), MODEL_INFO)


def run(case, num_replicas, route="round-robin", settings=None, **replica_settings):
    return simulate_replicas(case, ReplicaSettings(num_replicas, route, **replica_settings), settings or {})


@st.composite
def traces(draw):
    at, arrivals = 0.0, []
    for number in range(draw(st.integers(1, 30))):
        at += draw(st.floats(0, 0.05))
        arrivals.append(make_arrival(number, at, draw(st.integers(1, 200)), draw(st.integers(1, 20)),
                                     prefix=draw(st.none() | st.integers(0, 3)),
                                     adapter=draw(st.none() | st.integers(1, 4))))
    return arrivals


@settings(max_examples=60)
@given(arrivals=traces(), num_replicas=st.integers(1, 4), route=st.sampled_from([*ROUTING_POLICIES]))
def test_every_request_is_served_once(arrivals, num_replicas, route):
    stats = run(make_case(arrivals, max_active_adapters=2), num_replicas, route)
    assert sum(each.num_requests for each in stats) == len(arrivals) == len(RunStats.merge(stats).latencies["ttft"])
    assert sum(each.num_tokens for each in stats) == sum(arrival.num_output_tokens for arrival in arrivals)


@settings(max_examples=40)
@given(arrivals=traces(), route=st.sampled_from([*ROUTING_POLICIES]))
def test_one_replica_is_a_simulation_without_replicas(arrivals, route):
    case = make_case([replace(arrival, request=replace(arrival.request, adapter=None)) for arrival in arrivals])
    [stats] = run(case, 1, route)
    alone = case.simulate({})
    assert (stats.latencies, stats.num_tokens, stats.ended_at) == (alone.latencies, alone.num_tokens, alone.ended_at)


def test_prefixes_hit_more_where_affinity_keeps_them():
    random = Random(0)
    arrivals = [make_arrival(number, 0.04 * number, 160, 4, prefix=random.randrange(30)) for number in range(200)]
    shares = {route: RunStats.merge(run(make_case(arrivals), 3, route)).prefix_hit_share for route in ROUTING_POLICIES}
    assert shares["prefix"] > shares["round-robin"] + 0.15


def test_adapters_are_loaded_less_often_where_affinity_keeps_them():
    random = Random(0)
    arrivals = [make_arrival(number, 0.04 * number, 20, 4, adapter=random.randint(1, 12)) for number in range(200)]
    loads = {route: RunStats.merge(run(make_case(arrivals, max_active_adapters=6, adapter_cycle_time_s=0.5), 3, route))
             .num_adapter_loads for route in ROUTING_POLICIES}
    assert loads["adapter"] < loads["round-robin"] / 2


def test_request_waits_for_its_adapter():
    [stats] = run(make_case([make_arrival(0, 0.0, 20, 2, adapter=1)]), 1, adapter_load_seconds=3.0)
    assert stats.latencies["ttft"][0] > 3.0
    assert stats.num_adapter_loads == 1


def test_replicas_share_the_load():
    arrivals = [make_arrival(number, 0.002 * number) for number in range(90)]
    alone, *_ = run(make_case(arrivals), 1)
    three = run(make_case(arrivals), 3, "least")
    assert [stats.num_requests for stats in three] == [30, 30, 30]
    assert RunStats.merge(three).percentile("ttft", 99) < alone.percentile("ttft", 99)


@pytest.mark.parametrize(("num_replicas", "columns"), [(2, ["all", "replica 1", "replica 2"]),
                                                       (9, ["all", "replica 4", "replica 5"])])
def test_table_has_a_column_for_all_and_for_replicas(num_replicas, columns):
    stats = [RunStats(ended_at=2.0, num_requests=4, num_tokens=100 + (number == 4) - (number == 3))
             for number in range(num_replicas)]
    header, *rows = format_replica_table(stats).splitlines()
    assert re.split(" {2,}", header.strip()) == columns
    values = {words: others for words, *others in (re.split(" {2,}", row) for row in rows)}
    assert values["requests per second"] == [f"{2 * num_replicas:.1f}", "2.0", "2.0"]
    assert values["prompt tokens from the cache, %"] == ["-"] * 3


@pytest.mark.parametrize(("changed", "message"), [
    ({"replicas": 0}, "--replicas must be at least 1 and at most 1000, got 0"),
    ({"replicas": 1001}, "--replicas must be at least 1 and at most 1000, got 1001"),
    ({"route": "random"}, "--route must be one of round-robin, least, prefix, adapter, got random"),
    ({"adapter_load_ms": -1}, "--adapter-load-ms must be at least 0, got -1")])
def test_invalid_settings_are_named(tmp_path, monkeypatch, capsys, changed, message):
    arguments = {"trace": str(tmp_path), "replicas": 2, "route": "least", "adapter_load_ms": 0.0} | changed
    monkeypatch.setattr("sys.argv", ["replicas", json.dumps(arguments)])
    with pytest.raises(SystemExit) as ended:
        replicas.main()
    assert (ended.value.code, capsys.readouterr().err) == (2, f"weft: {message}\n")


@pytest.mark.slow
def test_recorded_trace_is_played_on_replicas(tmp_path, monkeypatch, capsys):
    record_busy_simulation(tmp_path / "one", 60, seed=1)
    arguments = {"trace": str(tmp_path / "one"), "replicas": 2, "route": "prefix", "adapter_load_ms": 0.0}
    monkeypatch.setattr("sys.argv", ["replicas", json.dumps(arguments)])
    replicas.main()
    title, header, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("60 requests on 2 replicas (prefix), simulated in ")
    assert header.split("  ")[-1] == "replica 2"
