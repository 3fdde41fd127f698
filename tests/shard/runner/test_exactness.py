"""Exactness gate at startup: it passes exact models and names the difference in others."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor

from shard.attention.backend import Attention, make_attention
from shard.checkpoint.reader import Weights
from shard.host.probe_cache import Forgotten, Kept
from shard.models.decoder import Decoder
from shard.models.read_config import read_config
from shard.models.registry import load_model
from shard.ops.linear import PackedLinear
from shard.parallel.group import Alone
from shard.runner.exactness import BRIEF, THOROUGH, Gate, Look, same_bits
from shard.workers.load_decoder import examine, make_cache

CPU = torch.device("cpu")


def first_layer(tmp_path_factory: pytest.TempPathFactory, quantize: str = "") -> Decoder:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    with Weights(folder, torch.float32, CPU, quantize=quantize) as weights:
        return load_model(read_config(folder), weights, Alone()).cut(1)


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return first_layer(tmp_path_factory)


def gate(layer: Decoder, attention: Attention | None = None, look: Look = BRIEF) -> Gate:
    config = layer.config
    attention = attention or make_attention("cpu", config.num_heads, config.num_kv_heads, config.head_dim)
    cache = partial(make_cache, layer, 16, dtype=torch.float32, device=CPU)
    return Gate(layer, config, attention, cache, CPU, look=look)


def spoiled(product: Callable[[Any, Tensor], Tensor], self: Any, x: Tensor, most: int = 20) -> Tensor:
    """Change the bits of the product above `most` rows, as if a library used another algorithm there."""
    y = product(self, x)
    return y if len(x) <= most else y.nextafter(torch.tensor(torch.inf))


def test_what_keeps_its_bits_passes(layer: Decoder) -> None:
    assert gate(layer).verdict() == ""


def test_weights_kept_as_int8_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert gate(first_layer(tmp_path_factory, "int8")).verdict() == ""


def test_a_product_that_depends_on_the_number_of_rows_is_found(layer: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: spoiled(original, self, x))
    assert "has other bits in hidden states" in gate(layer).verdict()


def test_a_thorough_look_finds_what_depends_on_many_prompts(layer: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate(layer, look=THOROUGH).verdict() == ""
    original = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: spoiled(original, self, x, 1000))
    assert gate(layer).verdict() == ""
    assert gate(layer, look=THOROUGH).verdict().startswith("a prompt among 6 others has other bits in hidden states")


def test_a_thorough_look_multiplies_the_head_by_all_rows(layer: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: spoiled(logits, self, hidden, 400))
    assert gate(layer).verdict() == ""
    assert gate(layer, look=THOROUGH).verdict().startswith("a token in a batch of 448 has other bits in logits")


def test_a_logprob_that_depends_on_where_its_row_lies_is_found(layer: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tensor.log_softmax
    monkeypatch.setattr(
        Tensor, "log_softmax", lambda self, axis: spoiled(lambda _, x: original(x, axis), None, self, 1))
    assert "has other bits in logprobs than" in gate(layer).verdict()


def test_a_rank_that_finds_a_difference_goes_on_with_those_that_do_not(
        layer: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 has logits, so only rank 0 finds this difference; it must still run every case."""
    original, count = Decoder.hidden, 0

    def counted(*given: Any) -> Tensor:
        nonlocal count
        count += 1
        return original(*given)

    monkeypatch.setattr(Decoder, "hidden", counted)
    assert gate(layer).verdict() == ""
    usual, count = count, 0
    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: spoiled(logits, self, hidden, 1))
    assert gate(layer).verdict().endswith("has other bits in logits and logprobs than the same prompt alone")
    assert count == usual


def test_attention_that_depends_on_the_cut_of_the_prompt_is_found(layer: Decoder) -> None:
    config = layer.config
    reference = make_attention("reference", config.num_heads, config.num_kv_heads, config.head_dim)
    assert "other bits" in gate(layer, reference).verdict()


def test_a_verdict_is_found_out_once(layer: Decoder, tmp_path: Path) -> None:
    kept, looked = Kept(tmp_path / "folder" / "machine.json"), []

    def verdict() -> str:
        looked.append(1)
        return "something differs"

    for _ in range(3):
        assert examine(verdict, Alone(), kept, "key", demanded=False) == "something differs"
    assert len(looked) == 1
    examine(verdict, Alone(), Forgotten(), "key", demanded=False)
    assert len(looked) == 2


def test_who_demands_exactness_and_cannot_have_it_is_told_why(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "machine.json")
    for _ in range(2):  # measured, then read from the file
        with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
            examine(lambda: "something differs", Alone(), kept, "key", demanded=True)
    assert examine(lambda: "", Alone(), kept, "another", demanded=True) == ""


def test_what_is_no_number_has_the_same_bits_as_itself() -> None:
    broken = torch.tensor([1.0, torch.nan])
    assert same_bits(broken, broken.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
