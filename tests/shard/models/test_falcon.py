from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import LINEAR_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    check_decoder_on_all_rank_counts,
    run_forward_on_ranks,
)

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.decoder import check_attention_head_split
from shard.models.falcon import FalconConfig
from shard.models.registry import load_model_config, parse_model_config

FALCON_7B = {  # as published in tiiuae/falcon-7b
    "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
    "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
    "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
    "num_kv_heads": 71, "parallel_attn": True, "torch_dtype": "bfloat16", "transformers_version": "4.27.4",
    "use_cache": True, "vocab_size": 65024}
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8}
FALCON_11B = FALCON_40B | {
    "activation": "gelu", "ff_factor": 4, "ffn_hidden_size": 16384, "hidden_size": 4096,
    "max_position_embeddings": 8192, "num_attention_heads": 32, "num_ln_in_parallel_attn": 1, "rope_scaling": None,
    "rope_theta": 500042.0, "tie_word_embeddings": False}
FALCON_7B_CONFIG = FalconConfig(architecture="FalconForCausalLM", vocabulary_size=65024, hidden_size=4544,
                                intermediate_size=18176, num_layers=32, num_heads=71, num_kv_heads=1, head_dim=64,
                                norm_epsilon=1e-5, max_positions=2048, dtype=torch.bfloat16,
                                rotary=RotaryConfig("default", 10000.0), tie_word_embeddings=True,
                                gelu_approximate="none", parallel_residual=True, num_layer_norms=1)
FALCON_7B_OPTIONS: dict[str, Any] = {"new_decoder_architecture": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "40B": {},
    "11B": {"dtype": "bfloat16", "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 131, "bias": True,
            "tie_word_embeddings": False, "rope_parameters": LINEAR_ROPE},
    "7B": FALCON_7B_OPTIONS,
    "a key head for each query, biases": FALCON_7B_OPTIONS | {"multi_query": False, "num_kv_heads": 4, "bias": True},
    "one half after the other": FALCON_7B_OPTIONS
    | {"dtype": "bfloat16", "parallel_attn": False, "activation": "gelu_new"},
}


def parse_config(values: dict[str, Any], **changes: Any) -> FalconConfig:
    config = parse_model_config(JsonConfig(values | changes, "config.json"))
    assert isinstance(config, FalconConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon", **changes)
    check_decoder_on_all_rank_counts(folder)
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


@pytest.mark.slow
def test_more_query_heads_than_tile_rows_share_a_kv_head(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon", hidden_size=136, num_attention_heads=17,
                                  **FALCON_7B_OPTIONS)
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


@pytest.mark.parametrize(("values", "expected"), [
    (FALCON_7B, FALCON_7B_CONFIG),
    (FALCON_40B, replace(FALCON_7B_CONFIG, hidden_size=8192, intermediate_size=32768, num_layers=60, num_heads=128,
                         num_kv_heads=8, num_layer_norms=2)),
    (FALCON_11B,
     replace(FALCON_7B_CONFIG, hidden_size=4096, intermediate_size=16384, num_layers=60, num_heads=32, num_kv_heads=8,
             head_dim=128, max_positions=8192, rotary=RotaryConfig("default", 500042.0), tie_word_embeddings=False)),
], ids=["7B", "40B", "11B"])
def test_published_configs_are_parsed(values: dict[str, Any], expected: FalconConfig) -> None:
    assert parse_config(values) == expected


def test_old_setting_names_are_accepted() -> None:
    older = {"n_head": 128, "n_layer": 60, "n_head_kv": 8, "n_embed": 8192}
    newer = ("num_attention_heads", "num_hidden_layers", "num_kv_heads", "hidden_size")
    remaining_settings = {name: value for name, value in FALCON_40B.items() if name not in newer}
    assert parse_config(remaining_settings, **older) == parse_config(FALCON_40B)


def test_settings_of_the_file_override_defaults() -> None:
    changes = {"bias": True, "parallel_attn": False, "activation": "gelu_new", "multi_query": False}
    assert parse_config(FALCON_7B, **changes) == replace(FALCON_7B_CONFIG, attention_bias=True, mlp_bias=True,
                                                         parallel_residual=False, num_layer_norms=2,
                                                         gelu_approximate="tanh", num_kv_heads=71)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"alibi": True}, "alibi true is not supported; supported: false"),
    ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm true is not"),
    ({"activation": "relu"}, "activation relu is not supported; supported: gelu, "),
    ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn may be at most 1 with new_decoder_.* false, got 2"),
    ({"num_attention_heads": 7}, r"hidden size \(4544\) must be a multiple of the number of attention heads \(7\)"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(FALCON_7B, **changes)


def test_ranks_that_cannot_split_71_heads_are_rejected() -> None:
    with pytest.raises(ValueError, match="2 shards cannot share 71 attention heads with 1 key/value heads"):
        check_attention_head_split(parse_config(FALCON_7B), 2)


@pytest.mark.slow
def test_stored_copy_of_a_tied_head_is_ignored(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The files of Falcon 7B store the head although it is tied to the embedding."""
    extra = {f"transformer.h.{layer}.self_attention.rotary_emb.inv_freq": torch.ones(8) for layer in range(2)}
    plain = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon")
    older = write_converted_checkpoint(plain, tmp_path / "older",
                                       extra_tensors=extra | {"lm_head.weight": torch.zeros(512, 64)})
    assert load_model_config(older) == load_model_config(plain)
    (expected,), (output,) = run_forward_on_ranks(plain, torch.float32), run_forward_on_ranks(older, torch.float32)
    assert output.logits is not None
    assert expected.logits is not None
    assert torch.equal(output.logits, expected.logits)
