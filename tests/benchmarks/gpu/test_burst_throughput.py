"""Tests of the workload given to weft, a single shard and transformers, and of their token rates."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from benchmarks.gpu import burst_throughput
from benchmarks.gpu.burst_throughput import (
    ModelLoadOptions,
    RequestLengths,
    count_output_tokens,
    draw_request_lengths,
    make_prompts,
    measure_http_throughput,
    measure_shard_throughput,
    measure_transformers_throughput,
)
from benchmarks.harness.random_checkpoints import make_byte_tokenizer

SIMULATED_LOAD_OPTIONS = ModelLoadOptions("", "cpu")


def test_random_lengths_are_in_range_and_repeatable() -> None:
    lengths = draw_request_lengths(200, 5, 9)
    assert {length.prompt for length in lengths} == {length.output for length in lengths} == set(range(5, 10))
    assert lengths == draw_request_lengths(200, 5, 9)
    assert count_output_tokens(lengths) == sum(output for _, output in lengths)


def test_texts_have_one_byte_per_token_and_differ() -> None:
    lengths = draw_request_lengths(20, 20, 30)
    prompts = [text for turn in range(3) for text in make_prompts(lengths, turn)]
    assert len({text[:16] for text in prompts}) == len(prompts)
    tokenizer = make_byte_tokenizer()
    assert [len(tokenizer.encode(text).ids) for text in prompts] == 3 * [length.prompt for length in lengths]


def test_http_throughput_counts_all_tokens() -> None:
    # a step takes 5 ms
    assert 0 < measure_http_throughput(SIMULATED_LOAD_OPTIONS, [RequestLengths(5, 4), RequestLengths(3, 7)]) < 2 / 0.005


def test_several_clients_share_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = list[int]()

    def time_burst(*arguments: Any) -> tuple[float, float]:
        shares.append(len(arguments[1]))
        return send(*arguments)
    send = burst_throughput.time_burst
    monkeypatch.setattr(burst_throughput, "STREAMS_PER_CLIENT_PROCESS", 2)
    monkeypatch.setattr(burst_throughput, "make_client_executor", ThreadPoolExecutor)
    monkeypatch.setattr(burst_throughput, "time_burst", time_burst)
    assert 0 < measure_http_throughput(SIMULATED_LOAD_OPTIONS, [RequestLengths(5, 4)] * 5) < 5 / 0.005
    assert sorted(shares) == [1, 1, 2, 2, 2, 2]  # the warm-up, and what is measured


def test_rejected_request_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"weft answered with 0 of 20000 tokens: .*16384"):
        measure_http_throughput(SIMULATED_LOAD_OPTIONS, [RequestLengths(5, 20_000)])


def test_transformers_throughput_is_measured(tmp_path: Path) -> None:
    rate, attention = measure_transformers_throughput(ModelLoadOptions(str(make_tiny_checkpoint(tmp_path)), "cpu",
                                                                       "float32"), draw_request_lengths(3, 2, 6))
    assert rate > 0
    assert attention


def test_shard_throughput_uses_prefills_and_decode_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill_lengths = list[list[int]]()
    monkeypatch.setattr(burst_throughput, "MAX_PREFILL_TOKENS", 25)
    monkeypatch.setattr(burst_throughput.StepTimer, "time_prefill",
                        lambda _, lengths, repeat: prefill_lengths.append(lengths) or [0.5] * repeat)
    monkeypatch.setattr(burst_throughput.StepTimer, "time_decode_steps",
                        lambda _, batch, context, repeat: [batch + context] * repeat)
    rate = measure_shard_throughput(ModelLoadOptions(str(make_tiny_checkpoint(tmp_path)), "cpu"), 5,
                                    RequestLengths(10, 6))
    assert prefill_lengths == [[10, 10], [10, 10], [10]]
    assert rate == 5 * 6 / (3 * 0.5 + 5 * (5 + 13))
