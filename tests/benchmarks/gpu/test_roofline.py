"""Tests of the roofline: estimates against values calculated by hand for an H200, and measured rates."""

import pytest
import torch

from benchmarks.gpu import roofline
from benchmarks.gpu.roofline import DeviceRates, compute_model_sizes, measure_device_rates
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS

H200_RATES = DeviceRates(4.3e12, 790e12)
DECODE_MILLISECONDS = {  # milliseconds for 1, 8, 32, 128 and 256 sequences of 512 and of 2,048 tokens
    "qwen2.5-0.5b": ([0.23, 0.24, 0.28, 0.44, 0.73], [0.24, 0.28, 0.42, 1.00, 1.85]),
    "llama-3.2-1b": ([0.58, 0.61, 0.70, 1.09, 1.83], [0.59, 0.70, 1.08, 2.59, 4.83]),
    "llama-3.1-8b": ([3.51, 3.62, 3.99, 5.50, 8.89], [3.55, 3.99, 5.49, 11.50, 20.88]),
}
PREFILL_MILLISECONDS = {"llama-3.2-1b": {2048: 5.3, 8192: 25.6}, "llama-3.1-8b": {2048: 37.4, 8192: 167.0}}


@pytest.mark.parametrize("shape", DECODE_MILLISECONDS)
def test_decode_time_is_memory_or_compute_bound(shape: str) -> None:
    size = compute_model_sizes(MODEL_CONFIGS[shape], torch.bfloat16)
    for context, expected in zip((512, 2048), DECODE_MILLISECONDS[shape], strict=True):
        milliseconds = [1e3 * size.ideal_decode_seconds(H200_RATES, batch, context) for batch in (1, 8, 32, 128, 256)]
        assert milliseconds == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("shape", PREFILL_MILLISECONDS)
def test_prefill_flops_are_products_and_attention(shape: str) -> None:
    size = compute_model_sizes(MODEL_CONFIGS[shape], torch.bfloat16)
    for length, expected in PREFILL_MILLISECONDS[shape].items():
        milliseconds = 1e3 * size.prefill_flops(length) / H200_RATES.flops_per_second
        assert milliseconds == pytest.approx(expected, rel=0.02)  # the expected values are rounded sums


def test_cache_bytes_per_token_match_the_models() -> None:
    cache_bytes = [2 * compute_model_sizes(MODEL_CONFIGS[shape], torch.bfloat16).kv_values_per_token
                   for shape in DECODE_MILLISECONDS]
    assert cache_bytes == [12_288, 32_768, 131_072]


def test_device_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "MATMUL_WIDTH", {"cpu": 16})
    monkeypatch.setattr(roofline, "COPY_BYTES", {"cpu": 2**12})
    monkeypatch.setattr(roofline, "measure_call_seconds", lambda call: call() is None or 0.5)
    rates = measure_device_rates("cpu", "float32")
    assert rates == DeviceRates(2 * 2**12 / 0.5, 2 * 16**3 / 0.5)
    assert rates.describe() == "copies 1.64e-08 TB/s, products 1.64e-08 TFLOP/s"


def test_several_calls_are_timed_together() -> None:
    calls = list[int]()
    assert roofline.measure_call_seconds(lambda: calls.append(1)) > 0
    assert len(calls) == 1 + roofline.CALLS_PER_REPETITION
