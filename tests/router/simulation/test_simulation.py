"""Simulation of the core under a virtual clock with given step times."""

import pytest

from router.model_info import ModelInfo
from router.request import LoadableResource, Request
from router.scheduler.settings import SchedulerSettings
from router.simulation.simulation import Simulation
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import RequestArrival, WorkloadTrace

MODEL_INFO = ModelInfo("none", "cpu", "none", 512, 4096, 16, 1000)
TIMING_PROFILE = TimingProfile((0.01, 1e-12, 1e-12, 1e-12))  # every step takes ten milliseconds


def make_arrival(arrived_at=0.0, prompt=20, output=5, max_new_tokens=None, **fields):
    request = Request("a", (0,) * prompt, max_new_tokens or output, adapter=fields.pop("adapter", None))
    return RequestArrival(arrived_at, request, output, **fields)


def run_simulation(*arrivals, timing_profile=TIMING_PROFILE, model_info=MODEL_INFO, seed=0, **settings):
    return Simulation(SchedulerSettings(**settings), model_info, WorkloadTrace(list(arrivals)), timing_profile,
                      seed).run()


def test_ttft_takes_one_step_and_each_further_token_another():
    stats = run_simulation(make_arrival())
    assert stats.latencies["ttft"] == [pytest.approx(0.01)]
    assert stats.latencies["itl"] == [pytest.approx(0.01)] * 4
    assert stats.num_tokens == 5


def test_sequence_ends_at_its_recorded_length():
    assert run_simulation(make_arrival(output=3, max_new_tokens=500)).num_tokens == 3


def test_request_cancelled_without_a_token_is_removed():
    stats = run_simulation(make_arrival(output=50), make_arrival(arrived_at=0.001, cancelled_after_seconds=0.02),
                           max_batch_size=1)
    assert stats.num_tokens == 50


def test_request_beyond_the_limit_is_rejected():
    assert run_simulation(make_arrival(), make_arrival(), make_arrival(), max_concurrent_requests=2).num_rejected == 1


def test_small_cache_causes_preemptions():
    stats = run_simulation(*(make_arrival(prompt=100, output=80) for _ in range(4)),
                           model_info=ModelInfo("none", "cpu", "none", 512, 4096, 16, 36))
    assert stats.num_preemptions > 0
    assert stats.num_tokens == 320


def test_adapters_are_available_in_the_simulation():
    assert run_simulation(make_arrival(adapter=LoadableResource("adapter", 1))).num_tokens == 5


def test_overhead_between_steps_is_included():
    alone = run_simulation(make_arrival(), timing_profile=TimingProfile(TIMING_PROFILE.coefficients,
                                                                        idle_overheads=[0.005]), look_ahead=1)
    ahead = run_simulation(make_arrival(),
                           timing_profile=TimingProfile(TIMING_PROFILE.coefficients, idle_overheads=[0.005],
                                                        pipelined_overheads=[0.001]), look_ahead=2)
    assert alone.latencies["itl"] == [pytest.approx(0.015)] * 4
    assert ahead.latencies["itl"] == [pytest.approx(0.011)] * 4


def test_planning_waits_while_the_router_handles_arrivals():
    stats = run_simulation(make_arrival(plan_delay_seconds=0.003),
                           make_arrival(arrived_at=0.002, plan_delay_seconds=0.001))
    assert stats.latencies["ttft"] == [pytest.approx(0.013), pytest.approx(0.011)]  # in one step


def test_same_seed_gives_the_same_result():
    pace = TimingProfile(TIMING_PROFILE.coefficients, {(False, -7): [1.0, 1.5, 2.0, 0.5, 1.2], (True, -7): [1.0, 3.0]})
    runs = [run_simulation(*(make_arrival(arrived_at=0.01 * n) for n in range(9)), timing_profile=pace,
                           seed=seed).latencies for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_requests_known_from_the_start_are_not_counted_as_arrivals():
    stats = run_simulation(make_arrival(is_arrival_known=False), make_arrival(arrived_at=0.1))
    assert (stats.num_requests, len(stats.latencies["ttft"]), stats.num_tokens) == (1, 1, 10)
