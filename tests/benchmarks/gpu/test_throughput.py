"""Tests of the workload given to weft, a single shard and transformers, and of their token rates."""

from pathlib import Path

import pytest
from support.small_checkpoints import tiny_checkpoint

from benchmarks.gpu import throughput
from benchmarks.gpu.throughput import Lengths, Where, by_shard, by_transformers, drawn, num_tokens, over_http, texts
from benchmarks.harness.checkpoints import byte_tokenizer

SIMULATED = Where("", "cpu")


def test_lengths_are_drawn_between_two_the_same_every_time() -> None:
    lengths = drawn(200, 5, 9)
    assert {length.prompt for length in lengths} == {length.output for length in lengths} == set(range(5, 10))
    assert lengths == drawn(200, 5, 9)
    assert num_tokens(lengths) == sum(output for _, output in lengths)


def test_a_byte_is_a_token_and_no_two_texts_are_alike() -> None:
    lengths = drawn(20, 20, 30)
    found = [text for turn in range(3) for text in texts(lengths, turn)]
    assert len({text[:16] for text in found}) == len(found)
    tokenizer = byte_tokenizer()
    assert [len(tokenizer.encode(text).ids) for text in found] == 3 * [length.prompt for length in lengths]


def test_all_tokens_come_over_http() -> None:
    assert 0 < over_http(SIMULATED, [Lengths(5, 4), Lengths(3, 7)]) < 2 / 0.005  # a step takes 5 ms


def test_an_answer_that_is_refused_is_no_figure() -> None:
    with pytest.raises(ValueError, match=r"weft answered with 0 of 20000 tokens: .*16384"):
        over_http(SIMULATED, [Lengths(5, 20_000)])


def test_transformers_answers_the_same(tmp_path: Path) -> None:
    rate, attention = by_transformers(Where(str(tiny_checkpoint(tmp_path)), "cpu", "float32"), drawn(3, 2, 6))
    assert rate > 0
    assert attention


def test_a_shard_alone_runs_prompts_and_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lots = list[list[int]]()
    monkeypatch.setattr(throughput, "PREFILL_TOKENS", 25)
    monkeypatch.setattr(throughput.Stage, "prompt_seconds",
                        lambda _, lengths, repeat: lots.append(lengths) or [0.5] * repeat)
    monkeypatch.setattr(throughput.Stage, "decode_seconds",
                        lambda _, batch, context, repeat: [batch + context] * repeat)
    rate = by_shard(Where(str(tiny_checkpoint(tmp_path)), "cpu"), 5, Lengths(10, 6))
    assert lots == [[10, 10], [10, 10], [10]]
    assert rate == 5 * 6 / (3 * 0.5 + 5 * (5 + 13))
