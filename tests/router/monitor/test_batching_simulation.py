"""Simulation of watched requests under another way of batching, beside `weft simulate`'s core run directly."""

import json
from dataclasses import replace

import pytest

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.model_info import ModelInfo
from router.monitor import batching_simulation
from router.monitor.batching_simulation import (
    BatchingSettings,
    make_arrivals,
    make_timing_profile,
    parse_steps,
    select_sequences,
    simulate_batching,
    summarize_steps,
)
from router.monitor.monitor import BufferedStep, BufferedStepRange
from router.monitor.observed_steps import ObservedSequence, ObservedStep
from router.request import Request, RequestKind, Tenant
from router.scheduler.settings import SchedulerSettings
from router.simulation.run_stats import percentile
from router.simulation.simulate import Simulation
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import WorkloadTrace

MODEL_INFO = ModelInfo("none", "cpu", "none", 512, 4096, 16, 1000)
PROFILE = TimingProfile((0.01, 0.0005, 1e-5, 1e-9), idle_overheads=[0.001], pipelined_overheads=[0.0005])
CONFIG = RouterConfig(max_batch_size=4)


def make_sequences(count=24, **changes):
    return [replace(ObservedSequence.from_request(
        number, Request(f"r{number}", (7,) * (10 + 7 * number), 5 + 11 * number % 60, tenant=Tenant("ab"[number % 2])),
        1000.0 + 0.003 * number), num_output_tokens=1 + 11 * number % 60, first_step=1, last_step=50, **changes)
        for number in range(1, count + 1)]


def simulate(batching="static", sequences=None, config=CONFIG, **changes):
    settings = BatchingSettings(batching, **changes).to_scheduler_settings(config, MODEL_INFO)
    return simulate_batching(make_arrivals(sequences or make_sequences()), settings, MODEL_INFO, PROFILE)


@pytest.mark.parametrize("batching", ["static", "continuous", "none"])
def test_simulation_equals_that_of_weft_simulate(batching):
    simulated = simulate(batching)
    arrivals = make_arrivals(make_sequences())
    settings = SchedulerSettings.from_config(replace(CONFIG, batching=batching, max_concurrent_requests=256),
                                             MODEL_INFO)
    stats = Simulation(settings, MODEL_INFO, WorkloadTrace(arrivals), PROFILE).run()
    summary = simulated.summary
    assert summary["tokens"] == stats.num_tokens == sum(sequence.num_output_tokens for sequence in make_sequences())
    assert simulated.steps[-1]["t"] == pytest.approx(stats.ended_at, abs=1e-3)  # the last Filter is no step
    for name, kind in (("first_token_ms", "ttft"), ("gap_ms", "itl"), ("wait_ms", "wait")):
        for percent in (50, 99):
            # A wait ends with the step before the first one, which has been planned a step ahead.
            difference = summary[name][f"p{percent}"] - 1000 * percentile(stats.latencies[kind], percent)
            assert -0.2 < difference < (20.0 if kind == "wait" else 0.2), (name, percent)


def test_static_groups_wait_for_their_longest_member():
    static, continuous = simulate("static"), simulate("continuous")
    assert static.summary["batch_size"] < continuous.summary["batch_size"]
    assert static.summary["seconds"] > 1.2 * continuous.summary["seconds"]
    lanes = set()
    for step in static.steps:  # a lane that is free stays so until the group is over
        admitted = {number for _, number in step["admitted"]}
        assert not admitted or not lanes
        lanes |= admitted
        lanes -= {number for _, number, _ in step["finished"]}


def test_preemption_is_no_cancelling_also_of_requests_that_end_later():
    small_cache = replace(MODEL_INFO, num_blocks=14)
    settings = BatchingSettings("continuous").to_scheduler_settings(CONFIG, small_cache)
    steps = simulate_batching(make_arrivals(make_sequences(10)), settings, small_cache, PROFILE).steps
    assert [number for step in steps for _, number in step["preempted"]]
    assert not [number for step in steps for _, number in step["cancelled"]]
    assert {number for step in steps for _, number, _ in step["finished"]} == {*range(1, 11)}


def test_sequences_are_numbered_in_order_of_arrival():
    prompts = {number: count for step in simulate("none").steps for _, number, count, kind in step["rows"]
               if kind == "f"}
    assert prompts == {sequence.id: sequence.num_prompt_tokens for sequence in make_sequences()}


def test_settings_of_the_server_hold_but_its_limits_of_requests_do_not():
    config = RouterConfig(max_batch_size=3, max_concurrent_requests=2, max_queue_requests=1, max_queue_ms=0.0,
                          look_ahead=1)
    settings = BatchingSettings("static", static_window_ms=20.0).to_scheduler_settings(config, MODEL_INFO)
    assert (settings.max_batch_size, settings.look_ahead, settings.static, settings.static_window_seconds) == (
        3, 1, True, 0.02)
    assert simulate(config=config).summary["tokens"] == simulate().summary["tokens"]
    assert BatchingSettings("static", 7).to_scheduler_settings(config, MODEL_INFO).max_batch_size == 7


def test_shared_prefixes_are_found_again():
    hashes = tuple(bytes([number]) * 16 for number in range(4))
    sequences = [replace(sequence, num_prompt_tokens=70, block_hashes=hashes, cache_namespace=b"n")
                 for sequence in make_sequences(3)]
    assert simulate("none", sequences).cached_tokens == [0, 64, 64]


@pytest.mark.parametrize(("limit", "value"), [("MAX_SIMULATED_STEPS", 20), ("MAX_SIMULATED_ROWS", 20),
                                              ("MAX_PROCESSOR_SECONDS", 0.0)])
def test_simulation_of_too_many_steps_ends_with_an_error(monkeypatch, limit, value):
    monkeypatch.setattr(batching_simulation, limit, value)
    with pytest.raises(InvalidRequest, match="the simulation takes more than"):
        simulate()


def make_step_range(steps, sequences):
    return BufferedStepRange([BufferedStep(step.number, json.dumps(step.to_json(0.0))) for step in steps],
                             {sequence.id: sequence for sequence in sequences})


def test_texts_to_pool_and_unknown_sequences_are_left_out():
    sequences = make_sequences(3)
    sequences[0].kind, sequences[1].tenant_name = RequestKind.EMBED, None
    assert [sequence.id for sequence in select_sequences(make_step_range([], sequences))] == [3]


def test_time_between_steps_is_the_median_of_the_buffered_ones():
    steps = [ObservedStep(number, "decode", 1.0, 0.010, 0.010 + overhead, rows=[(0, 1, 1, "d")])
             for number, overhead in enumerate((0.001, 0.004, 0.002))]
    profile = make_timing_profile(parse_steps(make_step_range(steps, [])), (1.0, 2.0, 3.0, 4.0))
    assert profile.coefficients == (1.0, 2.0, 3.0, 4.0)
    assert profile.idle_overheads == profile.pipelined_overheads == [pytest.approx(0.002)]
    assert make_timing_profile([], (1.0, 2.0, 3.0, 4.0)).idle_overheads == []


def test_summary_of_steps():
    steps = [ObservedStep(1, "prefill", 1.2, 0.1, 0.1, rows=[(0, 1, 8, "f"), (1, 2, 8, "p")],
                          admitted=[(0, 1), (1, 2)]),
             ObservedStep(2, "mixed", 1.3, 0.1, 0.1, rows=[(0, 1, 1, "d"), (1, 2, 8, "f")],
                          finished=[(0, 1, "length")]),
             ObservedStep(3, "decode", 1.5, 0.1, 0.2, rows=[(0, 1, 0, "d"), (1, 2, 1, "d")]),
             ObservedStep(3, "idle", 1.6)]
    assert summarize_steps([step.to_json(0.0) for step in steps], {1: 1.0, 2: 1.05}) == {
        "seconds": 0.6, "tokens": 4, "tokens_per_second": 6.7, "steps": 3, "batch_size": 2.0,
        "step_ms": pytest.approx(133.333), "first_token_ms": {"p50": 200.0, "p99": 250.0},
        "gap_ms": {"p50": 100.0, "p99": 200.0}, "wait_ms": {"p50": pytest.approx(50.0), "p99": 100.0}}
    assert summarize_steps([], {})["tokens_per_second"] is None
