from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    check_decoder_on_all_rank_counts,
    run_forward_on_ranks,
)

from shard.json_config import JsonConfig
from shard.models.gpt2 import Gpt2Config
from shard.models.registry import parse_model_config

PUBLISHED_CONFIG = {  # as published in openai-community/gpt2
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257}
EXPECTED_CONFIG = Gpt2Config(architecture="GPT2LMHeadModel", vocabulary_size=50257, hidden_size=768,
                             intermediate_size=3072, num_layers=12, num_heads=12, num_kv_heads=12, head_dim=64,
                             norm_epsilon=1e-5, max_positions=1024, dtype=torch.float32, tie_word_embeddings=True,
                             attention_bias=True, mlp_bias=True, gelu_approximate="tanh", scale_by_inverse_layer=False)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scores divided by the layer": {
        "dtype": "bfloat16", "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "unscaled, not tied": {"scale_attn_weights": False, "tie_word_embeddings": False, "activation_function": "gelu"},
    "odd sizes": {"vocab_size": 509, "n_inner": 131, "num_attention_heads": 8, "n_positions": 120},
}


def parse_config(**changes: Any) -> Gpt2Config:
    config = parse_model_config(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))
    assert isinstance(config, Gpt2Config)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt2", **changes)
    check_decoder_on_all_rank_counts(folder)
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


def test_settings_of_the_file_override_defaults() -> None:
    changes = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "n_inner": 100,
               "tie_word_embeddings": False, "dtype": "bfloat16"}
    assert parse_config(**changes) == replace(EXPECTED_CONFIG, attention_scale=1.0, scale_by_inverse_layer=True,
                                              intermediate_size=100, tie_word_embeddings=False, dtype=torch.bfloat16)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"add_cross_attention": True}, "add_cross_attention true is not supported"),
    ({"activation_function": "relu"}, "activation_function relu is not supported; supported: gelu, "),
    ({"n_embd": None}, "n_embd must be a whole number of at least 1, got None"),
    ({"n_head": 7}, r"hidden size \(768\) must be a multiple of the number of attention heads \(7\)")], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)


@pytest.mark.slow
def test_old_tensor_names_and_buffers_are_accepted(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    buffers = {"bias": torch.ones(1, 1, 8, 8).tril(), "masked_bias": torch.tensor(-1e4)}
    extra = {f"h.{layer}.attn.{name}": buffer.clone() for name, buffer in buffers.items() for layer in range(2)}
    plain = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt2")
    older = write_converted_checkpoint(plain, tmp_path / "older", extra_tensors=extra,
                                       rename_tensor=lambda name: name.removeprefix("transformer."))
    (expected,), (output,) = run_forward_on_ranks(plain, torch.float32), run_forward_on_ranks(older, torch.float32)
    assert torch.equal(output.hidden, expected.hidden)
