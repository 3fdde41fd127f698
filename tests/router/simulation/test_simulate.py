"""Simulation of a trace under other settings, and its report."""

import json

import pytest
from support.scheduling.recordings import record_busy_simulation

from router.recording.file import BadRecording
from router.simulation import simulate
from router.simulation.simulate import SimulationCase, format_flags, simulate_and_report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    record_busy_simulation(folder / "one", 150, seed=1)
    record_busy_simulation(folder / "two", 150, seed=2)
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
def test_held_out_run_is_predicted_within_fifteen_percent(folder):
    """The requests of one recording are simulated with the step times of another."""
    case = SimulationCase.from_files(folder / "one", folder / "two", seed=0)
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
    assert lines[0].startswith("150 requests, simulated in ")
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
