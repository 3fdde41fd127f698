"""Simulation of a trace under other settings, and its report."""

import json

import pytest
from support.recordings import clockwork_recording

from router.recording.file import BadRecording
from router.simulation import simulate
from router.simulation.simulate import Case, flags, report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    clockwork_recording(folder / "one", 150, seed=1)
    clockwork_recording(folder / "two", 150, seed=2)
    (folder / "plain").write_text('{"at": 0, "prompt_tokens": 100, "output_tokens": 20}\n')
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    def run(**told):
        monkeypatch.setattr("sys.argv", ["simulate", json.dumps(told)])
        try:
            simulate.main()
        except SystemExit as ended:
            return ended.code, *capsys.readouterr()
        return 0, *capsys.readouterr()
    return run


@pytest.mark.slow
def test_a_held_out_run_is_foretold_within_fifteen_per_cent(folder):
    """The requests of one recording are simulated with the step times of another."""
    case = Case.read(folder / "one", folder / "two", seed=0)
    foretold = case.under({})
    for share in (50, 99):
        real = case.trace.figures.percentile("ttft", share)
        assert foretold.percentile("ttft", share) == pytest.approx(real, rel=0.15)


@pytest.mark.slow
def test_settings_are_tried_beside_what_was(folder):
    case = Case.read(folder / "one", None, seed=0)
    few = case.under({"max_batch_size": 4})
    assert few.percentile("wait", 50) > 10 * case.under({}).percentile("wait", 50)
    lines = report(case, {"max_batch_size": 4}).splitlines()
    assert lines[0].startswith("150 requests, simulated in ")
    assert lines[1].split() == ["recorded", "simulated", "--max-batch-size", "4"]


@pytest.mark.slow
def test_a_smaller_cache_has_fewer_blocks(folder):
    case = Case.read(folder / "one", None, seed=0)
    assert case.under({"max_batch_total_tokens": 2000}).num_yields > case.under({}).num_yields


@pytest.mark.slow
def test_a_plain_trace_needs_a_recording_to_be_like(folder, run):
    with pytest.raises(BadRecording, match="does not tell how fast shards are; name a recording that does: --like"):
        Case.read(folder / "plain", None, seed=0)
    code, output, _ = run(trace=str(folder / "plain"), like=str(folder / "two"))
    assert code == 0
    assert output.splitlines()[1].split() == ["simulated"]


@pytest.mark.slow
def test_a_mistake_is_one_line(folder, run):
    assert run(trace=str(folder / "none"))[::2] == (
        2, f"weft: cannot read {folder / 'none'}: No such file or directory\n")
    code, _, errors = run(trace=str(folder / "one"), settings={"max_batch_prefill_tokens": 1})
    assert (code, errors) == (2, "weft: --max-batch-prefill-tokens must be at least 32, got 1\n")


def test_settings_as_flags():
    assert flags({"max_batch_size": 4, "prefill_policy": "pause"}) == "--max-batch-size 4 --prefill-policy pause"
    assert flags({"recompute": True, "static_equal_lengths": False}) == "--recompute --no-static-equal-lengths"
