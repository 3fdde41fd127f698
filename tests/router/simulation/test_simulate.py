"""Simulation of a trace under other settings, its report, and the core under a virtual clock with given step times."""

import json

import pytest
from support.scheduling.recordings import record_busy_simulation

from router.model_info import ModelInfo
from router.recording.recording_file import BadRecording
from router.request import LoadableResource, Request
from router.scheduler.settings import SchedulerSettings
from router.simulation import simulate
from router.simulation.simulate import Simulation, SimulationCase, format_flags, simulate_and_report
from router.simulation.timing_profile import TimingProfile
from router.simulation.trace import RequestArrival, WorkloadTrace

MODEL_INFO = ModelInfo("none", "cpu", "none", 512, 4096, 16, 1000)
NUM_REQUESTS = 50  # of a recording
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


# -- recorded traces under other settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    record_busy_simulation(folder / "one", NUM_REQUESTS, seed=1)
    record_busy_simulation(folder / "two", NUM_REQUESTS, seed=2)
    (folder / "plain").write_text('{"at": 0, "prompt_tokens": 100, "output_tokens": 20}\n')
    return folder


@pytest.fixture
def run_simulate(monkeypatch, capsys):
    def run(**arguments):
        monkeypatch.setattr("sys.argv", ["simulate", json.dumps(arguments)])
        try:
            simulate.main()
        except SystemExit as ended:
            return ended.code, *capsys.readouterr()
        return 0, *capsys.readouterr()
    return run


@pytest.mark.slow
def test_held_out_run_is_predicted_within_fifteen_percent(tmp_path):
    """The requests of one recording are simulated with the step times of another."""
    recordings = [record_busy_simulation(tmp_path / str(seed), 100, seed=seed).path for seed in (1, 2)]
    case = SimulationCase.from_files(*recordings, seed=0)
    predicted = case.simulate({})
    for share in (50, 99):
        recorded = case.trace.recorded_stats.percentile("ttft", share)
        assert predicted.percentile("ttft", share) == pytest.approx(recorded, rel=0.15)


@pytest.mark.slow
def test_changed_settings_are_compared_with_the_recorded_ones(folder):
    case = SimulationCase.from_files(folder / "one", None, seed=0)
    few = case.simulate({"max_batch_size": 4})
    assert few.percentile("wait", 50) > 10 * case.simulate({}).percentile("wait", 50)
    lines = simulate_and_report(case, {"max_batch_size": 4}).splitlines()
    assert lines[0].startswith(f"{NUM_REQUESTS} requests, simulated in ")
    assert lines[1].split() == ["recorded", "simulated", "--max-batch-size", "4"]


@pytest.mark.slow
def test_smaller_cache_causes_more_preemptions(folder):
    case = SimulationCase.from_files(folder / "one", None, seed=0)
    assert case.simulate({"max_batch_total_tokens": 2000}).num_preemptions > case.simulate({}).num_preemptions


@pytest.mark.slow
def test_plain_trace_needs_a_recording_for_timing(folder, run_simulate):
    with pytest.raises(BadRecording, match="does not tell how fast shards are; name a recording that does: --like"):
        SimulationCase.from_files(folder / "plain", None, seed=0)
    code, output, _ = run_simulate(trace=str(folder / "plain"), like=str(folder / "two"))
    assert code == 0
    assert output.splitlines()[1].split() == ["simulated"]


@pytest.mark.slow
def test_error_is_reported_in_one_line(folder, run_simulate):
    assert run_simulate(trace=str(folder / "none"))[::2] == (
        2, f"weft: cannot read {folder / 'none'}: No such file or directory\n")
    code, _, errors = run_simulate(trace=str(folder / "one"), settings={"max_batch_prefill_tokens": 1})
    assert (code, errors) == (2, "weft: --max-batch-prefill-tokens must be at least 32, got 1\n")


def test_settings_are_formatted_as_flags():
    assert format_flags({"max_batch_size": 4, "prefill_policy": "pause"}) == "--max-batch-size 4 --prefill-policy pause"
    assert format_flags({"recompute": True, "static_equal_lengths": False}) == "--recompute --no-static-equal-lengths"
