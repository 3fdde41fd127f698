"""Exactness gate at startup: it passes exact models and names the difference in others."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint, make_tiny_encoder
from support.model_runs.encoder_reference import load_encoder_model
from torch import Tensor

from shard.attention.backend import AttentionBackend, make_attention_backend
from shard.checkpoint.reader import CheckpointReader
from shard.hardware.probe_cache import ProbeCache
from shard.models.decoder import Decoder
from shard.models.encoder import Encoder
from shard.models.registry import load_model, load_model_config
from shard.ops.unquantized_linear import PackedLinear
from shard.parallel.group import SingleRankGroup
from shard.runner.batch_invariance_check import (
    QUICK_GATE_SIZES,
    THOROUGH_GATE_SIZES,
    ExactnessGate,
    ExactnessGateSizes,
    find_encoder_difference,
    have_same_bits,
)
from shard.workers.model_loading import find_inexact_reason, make_cache

CPU = torch.device("cpu")


def load_first_layer(tmp_path_factory: pytest.TempPathFactory, quantize: str = "") -> Decoder:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    with CheckpointReader(folder, torch.float32, CPU, quantize_on_load=quantize) as weights:
        return load_model(load_model_config(folder), weights, SingleRankGroup()).copy_first_layers(1)


@pytest.fixture(scope="module")
def one_layer_decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_first_layer(tmp_path_factory)


def make_gate(decoder: Decoder, attention: AttentionBackend | None = None,
              sizes: ExactnessGateSizes = QUICK_GATE_SIZES) -> ExactnessGate:
    config = decoder.config
    attention = attention or make_attention_backend("cpu", config.num_heads, config.num_kv_heads, config.head_dim)
    cache = partial(make_cache, decoder, 16, dtype=torch.float32, device=CPU)
    return ExactnessGate(decoder, config, attention, cache, CPU, sizes=sizes)


def call_with_changed_bits(original_call: Callable[[Any, Tensor], Tensor], self: Any, x: Tensor,
                           max_exact_rows: int = 20) -> Tensor:
    """Change the bits of the product above `max_exact_rows` rows, as if a library used another algorithm there."""
    y = original_call(self, x)
    return y if len(x) <= max_exact_rows else y.nextafter(torch.tensor(torch.inf))


def test_exact_model_passes(one_layer_decoder: Decoder) -> None:
    assert make_gate(one_layer_decoder).find_difference() == ""


def test_model_with_int8_weights_passes(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert make_gate(load_first_layer(tmp_path_factory, "int8")).find_difference() == ""


def test_linear_that_depends_on_the_number_of_rows_is_found(one_layer_decoder: Decoder,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    original = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: call_with_changed_bits(original, self, x))
    assert "has other bits in hidden states" in make_gate(one_layer_decoder).find_difference()


def test_thorough_gate_finds_dependence_on_many_prompts(one_layer_decoder: Decoder,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_gate(one_layer_decoder, sizes=THOROUGH_GATE_SIZES).find_difference() == ""
    original = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: call_with_changed_bits(original, self, x, 1000))
    assert make_gate(one_layer_decoder).find_difference() == ""
    assert make_gate(one_layer_decoder, sizes=THOROUGH_GATE_SIZES).find_difference().startswith(
        "a prompt among 6 others has other bits in hidden states")


def test_thorough_gate_runs_the_head_with_all_rows(one_layer_decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = Decoder.compute_logits
    monkeypatch.setattr(Decoder, "compute_logits",
                        lambda self, hidden: call_with_changed_bits(logits, self, hidden, 400))
    assert make_gate(one_layer_decoder).find_difference() == ""
    assert make_gate(one_layer_decoder, sizes=THOROUGH_GATE_SIZES).find_difference().startswith(
        "a token in a batch of 448 has other bits in logits")


def test_logprobs_that_depend_on_the_row_index_are_found(one_layer_decoder: Decoder,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tensor.log_softmax
    monkeypatch.setattr(
        Tensor, "log_softmax", lambda self, axis: call_with_changed_bits(lambda _, x: original(x, axis), None, self, 1))
    assert "has other bits in logprobs than" in make_gate(one_layer_decoder).find_difference()


def test_rank_that_finds_a_difference_still_runs_every_case(
        one_layer_decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 has logits, so only rank 0 finds this difference; it must still run every case."""
    original, count = Decoder.forward, 0

    def count_and_forward(*arguments: Any) -> Tensor:
        nonlocal count
        count += 1
        return original(*arguments)

    monkeypatch.setattr(Decoder, "forward", count_and_forward)
    assert make_gate(one_layer_decoder).find_difference() == ""
    expected_count, count = count, 0
    logits = Decoder.compute_logits
    monkeypatch.setattr(Decoder, "compute_logits", lambda self, hidden: call_with_changed_bits(logits, self, hidden, 1))
    assert make_gate(one_layer_decoder).find_difference().endswith(
        "has other bits in logits and logprobs than the same prompt alone")
    assert count == expected_count


def test_attention_that_depends_on_chunking_is_found(one_layer_decoder: Decoder) -> None:
    config = one_layer_decoder.config
    reference = make_attention_backend("reference", config.num_heads, config.num_kv_heads, config.head_dim)
    assert "other bits" in make_gate(one_layer_decoder, reference).find_difference()


def test_gate_result_is_cached(one_layer_decoder: Decoder, tmp_path: Path) -> None:
    cache, checks = ProbeCache(tmp_path / "folder" / "machine.json"), []

    def find_difference() -> str:
        checks.append(1)
        return "something differs"

    for _ in range(3):
        assert find_inexact_reason(find_difference, SingleRankGroup(), cache, "key",
                                   is_required=False) == "something differs"
    assert len(checks) == 1
    find_inexact_reason(find_difference, SingleRankGroup(), ProbeCache(None), "key", is_required=False)
    assert len(checks) == 2


def test_demanded_exactness_fails_with_the_difference_found(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path / "machine.json")
    for _ in range(2):  # measured, then read from the file
        with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
            find_inexact_reason(lambda: "something differs", SingleRankGroup(), cache, "key", is_required=True)
    assert find_inexact_reason(lambda: "", SingleRankGroup(), cache, "another", is_required=True) == ""


def test_nan_has_the_same_bits_as_itself() -> None:
    broken = torch.tensor([1.0, torch.nan])
    assert have_same_bits(broken, broken.clone())
    assert not have_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


# -- encoders


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with labels"])
def one_layer_encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=request.param)
    return load_encoder_model(folder, torch.float32, SingleRankGroup()).copy_first_layers(1)


def test_exact_encoder_passes(one_layer_encoder: Encoder) -> None:
    assert find_encoder_difference(one_layer_encoder, CPU) == ""


def test_linear_of_an_encoder_that_depends_on_the_number_of_rows_is_found(
        one_layer_encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    original_call = PackedLinear.__call__

    def call_depending_on_rows(self: PackedLinear, x: Tensor) -> Tensor:
        y = original_call(self, x)
        return y if len(x) <= 200 else y.nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(PackedLinear, "__call__", call_depending_on_rows)
    assert find_encoder_difference(
        one_layer_encoder, CPU) == "a text of 1 tokens has other bits among 3 texts than alone"
