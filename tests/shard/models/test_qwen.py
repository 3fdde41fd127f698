from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    load_decoder_model,
    median_token_distance,
    run_forward_on_ranks,
)

from shard.json_config import JsonConfig
from shard.models.qwen import list_dense_layer_indices
from shard.models.registry import parse_model_config
from shard.parallel.group import SingleRankGroup

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shares as they are, biases": {"norm_topk_prob": False, "attention_bias": True},
    "every other layer": {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3],
                          "moe_intermediate_size": 40},
    "a window, older": {"dtype": "bfloat16", "use_sliding_window": True, "sliding_window": 24, "older": True},
}
PUBLISHED_CONFIG = {  # the relevant fields of Qwen3-30B-A3B
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwen2_matches_transformers(
        tmp_path_factory: pytest.TempPathFactory, tied: bool, num_ranks: int, dtype: torch.dtype) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", dtype="bfloat16", tie_word_embeddings=tied)
    check_decoder_matches_transformers(folder, dtype, num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwen3_matches_transformers(
        tmp_path_factory: pytest.TempPathFactory, bias: bool, num_ranks: int, dtype: torch.dtype) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", dtype="bfloat16", attention_bias=bias)
    check_decoder_matches_transformers(folder, dtype, num_ranks)


@pytest.mark.slow
def test_checkpoint_without_head_and_name_prefix_is_read(tmp_path_factory: pytest.TempPathFactory,
                                                         tmp_path: Path) -> None:
    """Qwen3-Embedding is published like this: names lack the `model.` prefix, and the head is the embedding."""
    plain = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", tie_word_embeddings=True)
    unprefixed = write_converted_checkpoint(plain, tmp_path / "other",
                                            rename_tensor=lambda name: name.removeprefix("model."))
    (expected,), (output,) = run_forward_on_ranks(plain, torch.float32), run_forward_on_ranks(unprefixed, torch.float32)
    assert torch.equal(output.hidden, expected.hidden)


# -- mixture of experts


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_qwen3_moe_matches_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **changes)
    for dtype, num_ranks in ((torch.float32, 1), (torch.float32, 4), (torch.bfloat16, 2)):
        check_decoder_matches_transformers(folder, dtype, num_ranks, distance_function=median_token_distance)


@pytest.mark.slow
def test_cpu_attention_matches_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **VARIANTS["a window, older"])
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


def test_representative_layers_include_the_first_moe_layer(tmp_path_factory: pytest.TempPathFactory) -> None:
    for changes, count in (({}, 1), (VARIANTS["every other layer"], 2)):
        folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **changes)
        assert load_decoder_model(folder, torch.float32, SingleRankGroup()).num_representative_layers == count


def test_published_config_is_parsed() -> None:
    config = parse_model_config(JsonConfig(PUBLISHED_CONFIG, "config.json"))
    assert (config.num_experts, config.num_experts_per_token, config.expert_intermediate_size) == (128, 8, 768)  # type: ignore[attr-defined]
    assert config.normalize_routing_weights  # type: ignore[attr-defined]
    assert config.sliding_windows == config.dense_layers == ()  # type: ignore[attr-defined]


def test_both_names_of_the_number_of_experts_are_accepted() -> None:
    newer = {name: value for name, value in PUBLISHED_CONFIG.items()
             if name != "num_experts"} | {"num_local_experts": 16}
    assert parse_model_config(JsonConfig(newer, "config.json")).num_experts == 16  # type: ignore[attr-defined]


def test_dense_layers_are_listed_or_follow_from_the_sparse_step() -> None:
    assert list_dense_layer_indices(JsonConfig({"mlp_only_layers": [1], "decoder_sparse_step": 3}, ""),
                                    6) == (0, 1, 3, 4)


def test_choosing_more_experts_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"num_experts_per_tok must be at most the number of experts \(4\), got 8"):
        parse_model_config(JsonConfig(PUBLISHED_CONFIG | {"num_experts": 4}, "config.json"))
