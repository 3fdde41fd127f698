"""Tests of the command line of benchmarks/gpu and of its result page."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import __main__ as card
from benchmarks.gpu import roofline, step_timer
from benchmarks.gpu.burst_throughput import compare_throughputs


@pytest.fixture(autouse=True)
def small_in_process_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run everything in this process, with few steps and small tensors."""
    monkeypatch.setattr(card, "run_in_new_process", lambda call, *arguments, **named: call(*arguments, **named))
    monkeypatch.setattr(step_timer, "NUM_TIMED_STEPS", 2)
    monkeypatch.setattr(roofline, "MATMUL_WIDTH", {"cpu": 16})
    monkeypatch.setattr(roofline, "COPY_BYTES", {"cpu": 2**12})


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, Any]:
    """Return the printed section and the parsed JSON line below it."""
    card.app(arguments, result_action="return_value")
    *lines, last = capsys.readouterr().out.splitlines()
    return "\n".join(lines), json.loads(last)


def test_decode_and_prefill_are_sections_of_one_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ["--shapes", "tiny", "--device", "cpu", "--repeat", "1", "--save", str(tmp_path / "pages"), "--folder",
              str(tmp_path)]
    steps_page, result = run_command(capsys, "decode", "--batch", "1", "3", "--context", "20", "40", *common)
    assert [(row["context"], row["sequences"]) for row in result["rows"]] == [(20, 1), (20, 3), (40, 1), (40, 3)]
    assert steps_page.splitlines()[6].split(" | ")[:4] == ["| model", "context", "sequences", "ms"]
    assert "TFLOP/s" in steps_page
    assert "goal" not in steps_page
    prompts_page, result = run_command(capsys, "prompts", "--length", "30", *common)
    assert [row["tokens"] for row in result["rows"]] == [30]
    [page] = (tmp_path / "pages").iterdir()
    assert page.name == f"{page.stem}.md"
    assert page.read_text() == f"{steps_page}\n{prompts_page}\n"


def test_compared_measurements_alternate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rates, order = iter([10.0, 8.0, 30.0, 20.0, 8.0, 16.0]), list[str]()

    def make_measurement(name: str) -> Any:
        return lambda *_: order.append(name) or next(rates)
    monkeypatch.setattr(card, "measure_http_throughput", make_measurement("http"))
    monkeypatch.setattr(card, "measure_shard_throughput", make_measurement("shard"))
    _, result = run_command(capsys, "served", "--shape", "tiny", "--streams", "2", "--repeat", "3")
    assert order == ["http", "shard"] * 3
    [row] = result["rows"]
    assert row == {"model": "tiny", "streams": 2, "prompt": 128, "output": 256, "goal": "", "HTTP tokens/s": 10,
                   "shard alone tokens/s": 16, "ratio": 1.25, "least": 0.5, "most": 1.5}


def test_transformers_reports_its_attention(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "measure_http_throughput", lambda *_: 30.0)
    monkeypatch.setattr(card, "measure_transformers_throughput", lambda *_: (20.0, "sdpa"))
    page, result = run_command(capsys, "beside", "--shape", "tiny", "--requests", "2", "--repeat", "1")
    [row] = result["rows"]
    assert (row["ratio"], row["its attention"]) == (1.5, "sdpa")
    assert page.startswith("## Beside transformers ")


def test_ratio_is_the_median_over_turns() -> None:
    assert compare_throughputs("a", "b", [(1.0, 2.0), (4.0, 4.0), (3.0, 1.0)]) == {
        "a tokens/s": 3, "b tokens/s": 2, "ratio": 1.0, "least": 0.5, "most": 3.0}


def test_unknown_model_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command(capsys, "decode", "--shapes", "gpt2-medium")
    assert "gpt2-medium" in capsys.readouterr().err
