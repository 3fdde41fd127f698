"""Goals, and settings that reach them."""

import json
from dataclasses import replace

import pytest
from support.scheduling.recordings import record_busy_simulation

from benchmarks import settings_search
from benchmarks.settings_search import PercentileGoal, SettingsSearch, format_report
from router.recording.recording_file import BadRecording
from router.simulation.run_stats import RunStats
from router.simulation.simulate import SimulationCase


@pytest.mark.parametrize(("text", "goals"), [
    ("ttft=500ms", [PercentileGoal("ttft", 99, 0.5)]),
    ("ttft.p50=2s, itl=50ms", [PercentileGoal("ttft", 50, 2.0), PercentileGoal("itl", 99, 0.05)]),
    ("wait.p99.9=1.5s", [PercentileGoal("wait", 99.9, 1.5)]),
])
def test_goal_is_a_percentile_of_a_latency(text, goals):
    assert PercentileGoal.parse_all(text) == goals


@pytest.mark.parametrize("text", ["", "ttft", "speed=5ms", "ttft=5", "ttft.90=5ms", "ttft=5ms;itl=2ms"])
def test_invalid_goal_is_rejected(text):
    with pytest.raises(ValueError, match=r"--goal .*wanted is one of ttft, wait, itl"):
        PercentileGoal.parse_all(text)


class MadeUpCase(SimulationCase):
    """Case with made-up figures: a larger batch delays every token and brings the first one sooner."""

    def simulate(self, settings):
        size = settings.get("max_batch_size", 256)
        figures = RunStats(num_rejected=1 if settings.get("max_batch_prefill_tokens") == 512 else 0)
        figures.latencies["ttft"] = [10.0 / size]
        figures.latencies["itl"] = [0.001 * size]
        return figures


@pytest.fixture
def made_up_case(tmp_path):
    recording = record_busy_simulation(tmp_path / "file", 3)
    case = SimulationCase.from_files(recording.path, None, 0)
    return MadeUpCase(case.trace, case.timing_profile, case.config, case.model_info)


def test_setting_that_reaches_the_goal_is_found(made_up_case):
    goals = PercentileGoal.parse_all("ttft=1s,itl=40ms")
    attempts = SettingsSearch(made_up_case, goals).run()
    assert attempts[0].settings == {"max_batch_size": 16} or attempts[0].settings == {"max_batch_size": 32}
    assert format_report(goals, attempts).splitlines()[-1].startswith("use: --max-batch-size ")


def test_unreachable_goal_is_reported_with_the_nearest_setting(made_up_case):
    goals = PercentileGoal.parse_all("ttft=1ms,itl=1ms")
    text = format_report(goals, SettingsSearch(made_up_case, goals).run())
    assert text.splitlines()[-1].startswith("no setting that was tried reaches the goal; the nearest: --max-batch-size")


def test_setting_that_rejects_more_requests_is_not_chosen(made_up_case):
    attempts = SettingsSearch(made_up_case, PercentileGoal.parse_all("ttft=1s")).run()
    assert attempts[-1].settings["max_batch_prefill_tokens"] == 512


def test_settings_that_already_reach_the_goal_are_kept(made_up_case):
    goals = PercentileGoal.parse_all("ttft=1s")
    text = format_report(goals, SettingsSearch(replace(made_up_case), goals).run())
    assert text.splitlines()[-1] == "the goal is reached as it is"


def test_error_is_reported_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["settings_search", json.dumps({"goal": "x", "trace": str(tmp_path)})])
    with pytest.raises(SystemExit) as ended:
        settings_search.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("weft: --goal x: wanted is one of")


def test_trace_without_requests_is_reported_in_one_line(monkeypatch, capsys, tmp_path):
    recording = record_busy_simulation(tmp_path / "file", 0)
    monkeypatch.setattr("sys.argv", ["settings_search", json.dumps({"goal": "ttft=1s", "trace": str(recording.path)})])
    with pytest.raises(SystemExit):
        settings_search.main()
    assert capsys.readouterr().err == "weft: the trace has no requests\n"


@pytest.mark.slow
def test_recorded_trace_can_be_tuned(tmp_path):
    case = SimulationCase.from_files(record_busy_simulation(tmp_path / "file", 40).path, None, 0)
    assert isinstance(case, SimulationCase)
    attempts = SettingsSearch(case, PercentileGoal.parse_all("itl.p50=30ms")).run()
    assert attempts[0].score <= attempts[-1].score
    with pytest.raises(BadRecording):
        SimulationCase.from_files(tmp_path / "none", None, 0)
