"""Goals, and settings that reach them."""

import json
from dataclasses import replace

import pytest
from support.recordings import clockwork_recording

from router.recording.file import BadRecording
from router.simulation import tune
from router.simulation.report import Figures
from router.simulation.simulate import Case
from router.simulation.tune import Goal, Tuning, report


@pytest.mark.parametrize(("text", "goals"), [
    ("ttft=500ms", [Goal("ttft", 99, 0.5)]),
    ("ttft.p50=2s, itl=50ms", [Goal("ttft", 50, 2.0), Goal("itl", 99, 0.05)]),
    ("wait.p99.9=1.5s", [Goal("wait", 99.9, 1.5)]),
])
def test_a_goal_is_a_percentile_of_a_time(text, goals):
    assert Goal.all_of(text) == goals


@pytest.mark.parametrize("text", ["", "ttft", "speed=5ms", "ttft=5", "ttft.90=5ms", "ttft=5ms;itl=2ms"])
def test_what_is_no_goal_is_told(text):
    with pytest.raises(ValueError, match=r"--goal .*wanted is one of ttft, wait, itl"):
        Goal.all_of(text)


class Made(Case):
    """Case with made-up figures: a larger batch delays every token and brings the first one sooner."""

    def under(self, settings):
        size = settings.get("max_batch_size", 256)
        figures = Figures(num_refused=1 if settings.get("max_batch_prefill_tokens") == 512 else 0)
        figures.seconds["ttft"] = [10.0 / size]
        figures.seconds["itl"] = [0.001 * size]
        return figures


@pytest.fixture
def made(tmp_path):
    recording = clockwork_recording(tmp_path / "file", 3)
    case = Case.read(recording.path, None, 0)
    return Made(case.trace, case.pace, case.config, case.facts)


def test_the_setting_that_reaches_the_goal_is_found(made):
    goals = Goal.all_of("ttft=1s,itl=40ms")
    attempts = Tuning(made, goals).run()
    assert attempts[0].settings == {"max_batch_size": 16} or attempts[0].settings == {"max_batch_size": 32}
    assert report(goals, attempts).splitlines()[-1].startswith("use: --max-batch-size ")


def test_a_goal_out_of_reach_is_said_to_be(made):
    goals = Goal.all_of("ttft=1ms,itl=1ms")
    text = report(goals, Tuning(made, goals).run())
    assert text.splitlines()[-1].startswith("no setting that was tried reaches the goal; the nearest: --max-batch-size")


def test_a_setting_that_refuses_more_is_no_answer(made):
    attempts = Tuning(made, Goal.all_of("ttft=1s")).run()
    assert attempts[-1].settings["max_batch_prefill_tokens"] == 512


def test_what_is_good_as_it_is_stays(made):
    goals = Goal.all_of("ttft=1s")
    text = report(goals, Tuning(replace(made), goals).run())
    assert text.splitlines()[-1] == "the goal is reached as it is"


def test_a_mistake_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["tune", json.dumps({"goal": "x", "trace": str(tmp_path)})])
    with pytest.raises(SystemExit) as ended:
        tune.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("weft: --goal x: wanted is one of")


def test_a_trace_without_requests_is_one_line(monkeypatch, capsys, tmp_path):
    recording = clockwork_recording(tmp_path / "file", 0)
    monkeypatch.setattr("sys.argv", ["tune", json.dumps({"goal": "ttft=1s", "trace": str(recording.path)})])
    with pytest.raises(SystemExit):
        tune.main()
    assert capsys.readouterr().err == "weft: the trace has no requests\n"


@pytest.mark.slow
def test_a_real_trace_is_tuned(tmp_path):
    case = Case.read(clockwork_recording(tmp_path / "file", 40).path, None, 0)
    assert isinstance(case, Case)
    attempts = Tuning(case, Goal.all_of("itl.p50=30ms")).run()
    assert attempts[0].score <= attempts[-1].score
    with pytest.raises(BadRecording):
        Case.read(tmp_path / "none", None, 0)
