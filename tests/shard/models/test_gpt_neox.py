from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import DYNAMIC_ROPE, LINEAR_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    check_decoder_on_all_rank_counts,
    run_forward_on_ranks,
)

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.gpt_layers import GptConfig
from shard.models.registry import load_model_config, parse_model_config

PUBLISHED_CONFIG = {  # as published in EleutherAI/pythia-160m
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304}
EXPECTED_CONFIG = GptConfig(
    architecture="GPTNeoXForCausalLM", vocabulary_size=50304, hidden_size=768, intermediate_size=3072, num_layers=12,
    num_heads=12, num_kv_heads=12, head_dim=64, norm_epsilon=1e-5, max_positions=2048, dtype=torch.float16,
    rotary=RotaryConfig("default", 10000.0, rotated_fraction=0.25), attention_bias=True, mlp_bias=True,
    gelu_approximate="none",
    parallel_residual=True)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one half after the other, all turned": {
        "dtype": "bfloat16", "use_parallel_residual": False,
        "rope_parameters": LINEAR_ROPE | {"partial_rotary_factor": 1.0}},
    "no biases in attention, tied": {
        "attention_bias": False, "tie_word_embeddings": True, "hidden_act": "gelu_fast",
        "rope_parameters": DYNAMIC_ROPE | {"partial_rotary_factor": 0.5}},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "num_attention_heads": 8},
}


def parse_config(**changes: Any) -> GptConfig:
    config = parse_model_config(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))
    assert isinstance(config, GptConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox", **changes)
    check_decoder_on_all_rank_counts(folder)
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


@pytest.mark.parametrize(("changes", "rotary"), [
    ({"rotary_pct": 1.0, "rotary_emb_base": 5000}, RotaryConfig("default", 5000.0)),
    ({"rotary_pct": None, "rotary_emb_base": None}, RotaryConfig("default", 10000.0, rotated_fraction=0.25)),
    ({"rope_theta": 500, "partial_rotary_factor": 0.5}, RotaryConfig("default", 500.0, rotated_fraction=0.5)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 300, "partial_rotary_factor": 0.75}},
     RotaryConfig("default", 300.0, rotated_fraction=0.75)),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}},
     RotaryConfig("linear", 10000.0, scaling_factor=2.0, original_max_positions=2048, rotated_fraction=0.25))], ids=str)
def test_old_and_new_rotary_settings_are_accepted(changes: dict[str, Any], rotary: RotaryConfig) -> None:
    assert parse_config(**changes).rotary == rotary


def test_settings_of_the_file_override_defaults() -> None:
    changes = {
        "use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
    assert parse_config(**changes) == replace(
        EXPECTED_CONFIG, parallel_residual=False, attention_bias=False, gelu_approximate="tanh", norm_epsilon=1e-3)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_act": "relu"}, "hidden_act relu is not supported; supported: gelu, "),
    ({"rotary_pct": 0.3}, "rotary_pct 0.3 is 19 of a head's 64 values, which must be an even number of at most 64"),
    ({"rotary_pct": 2}, "rotary_pct 2.0 is 128 of a head's 64 values"),
    ({"num_attention_heads": 7}, r"hidden size \(768\) must be a multiple of the number of attention heads \(7\)")])
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["embed_out", "lm_head"])
def test_old_tensor_names_and_buffers_are_accepted(
        tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, head: str) -> None:
    buffers = {"bias": torch.ones(1, 1, 8, 8, dtype=torch.bool), "masked_bias": torch.tensor(-1e9),
               "rotary_emb.inv_freq": torch.ones(2)}
    extra = {f"gpt_neox.layers.{layer}.attention.{name}": buffer.clone()
             for name, buffer in buffers.items() for layer in range(2)}
    plain = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox")
    older = write_converted_checkpoint(
        plain, tmp_path / "older", extra_tensors=extra,
        rename_tensor=lambda name: name.replace("embed_out", head).replace("lm_head", head))
    assert load_model_config(plain) == load_model_config(older)
    (expected,), (output,) = run_forward_on_ranks(plain, torch.float32), run_forward_on_ranks(older, torch.float32)
    assert torch.equal(output.hidden, expected.hidden)
