"""Tests of the roofline: estimates against values calculated by hand for an H200, and measured rates."""

import pytest
import torch

from benchmarks.gpu import roofline
from benchmarks.gpu.roofline import Rates, rates, sizes
from benchmarks.harness.checkpoints import SHAPES

H200 = Rates(4.3e12, 790e12)
STEPS = {  # milliseconds for 1, 8, 32, 128 and 256 sequences of 512 and of 2,048 tokens
    "qwen2.5-0.5b": ([0.23, 0.24, 0.28, 0.44, 0.73], [0.24, 0.28, 0.42, 1.00, 1.85]),
    "llama-3.2-1b": ([0.58, 0.61, 0.70, 1.09, 1.83], [0.59, 0.70, 1.08, 2.59, 4.83]),
    "llama-3.1-8b": ([3.51, 3.62, 3.99, 5.50, 8.89], [3.55, 3.99, 5.49, 11.50, 20.88]),
}
PROMPTS = {"llama-3.2-1b": {2048: 5.3, 8192: 25.6}, "llama-3.1-8b": {2048: 37.4, 8192: 167.0}}


@pytest.mark.parametrize("shape", STEPS)
def test_a_step_reads_weights_and_cache_or_calculates(shape: str) -> None:
    size = sizes(SHAPES[shape], torch.bfloat16)
    for context, expected in zip((512, 2048), STEPS[shape], strict=True):
        found = [1e3 * size.decode_seconds(H200, batch, context) for batch in (1, 8, 32, 128, 256)]
        assert found == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("shape", PROMPTS)
def test_a_prompt_is_products_and_attention(shape: str) -> None:
    size = sizes(SHAPES[shape], torch.bfloat16)
    for length, expected in PROMPTS[shape].items():
        found = 1e3 * size.prompt_operations(length) / H200.operations
        assert found == pytest.approx(expected, rel=0.02)  # the expected values are rounded sums


def test_what_a_token_leaves_in_the_cache() -> None:
    kept = [2 * sizes(SHAPES[shape], torch.bfloat16).cached for shape in STEPS]
    assert kept == [12_288, 32_768, 131_072]


def test_rates_are_measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "WIDTH", {"cpu": 16})
    monkeypatch.setattr(roofline, "COPIED", {"cpu": 2**12})
    monkeypatch.setattr(roofline, "seconds_of", lambda call: call() is None or 0.5)
    found = rates("cpu", "float32")
    assert found == Rates(2 * 2**12 / 0.5, 2 * 16**3 / 0.5)
    assert found.told() == "copies 1.64e-08 TB/s, products 1.64e-08 TFLOP/s"


def test_several_are_timed_together() -> None:
    calls = list[int]()
    assert roofline.seconds_of(lambda: calls.append(1)) > 0
    assert len(calls) == 1 + roofline.AT_ONCE
