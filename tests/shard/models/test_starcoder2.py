from dataclasses import replace
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import LINEAR_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_matches_transformers, check_decoder_on_all_rank_counts

from shard.json_config import JsonConfig
from shard.layers.rotary import RotaryConfig
from shard.models.gpt_layers import GptConfig
from shard.models.registry import load_model_config, parse_model_config

PUBLISHED_CONFIG = {  # as published in bigcode/starcoder2-3b
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0, "embedding_dropout": 0.1,
    "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "initializer_range": 0.018042,
    "intermediate_size": 12288, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default",
    "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24,
    "num_hidden_layers": 30, "num_key_value_heads": 2, "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
    "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.37.0.dev0", "use_bias": True,
    "use_cache": True, "vocab_size": 49152}
EXPECTED_CONFIG = GptConfig(
    architecture="Starcoder2ForCausalLM", vocabulary_size=49152, hidden_size=3072, intermediate_size=12288,
    num_layers=30, num_heads=24, num_kv_heads=2, head_dim=128, norm_epsilon=1e-5, max_positions=16384,
    dtype=torch.float32, rotary=RotaryConfig("default", 999999.4420358813), tie_word_embeddings=True,
    attention_bias=True, mlp_bias=True,
    sliding_windows=(4096,) * 30, gelu_approximate="tanh")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a window, not tied": {"dtype": "bfloat16", "sliding_window": 33, "tie_word_embeddings": False},
    "no biases, one key head": {"use_bias": False, "num_key_value_heads": 1, "hidden_act": "gelu"},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "head_dim": 24, "rope_parameters": LINEAR_ROPE},
}


def parse_config(**changes: Any) -> GptConfig:
    config = parse_model_config(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))
    assert isinstance(config, GptConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "starcoder2", **changes)
    check_decoder_on_all_rank_counts(folder)
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


def test_settings_of_the_file_override_defaults() -> None:
    changes = {"use_bias": False, "sliding_window": None, "tie_word_embeddings": False, "hidden_act": "gelu"}
    assert parse_config(**changes) == replace(EXPECTED_CONFIG, attention_bias=False, mlp_bias=False, sliding_windows=(),
                                              tie_word_embeddings=False, gelu_approximate="none")


def test_old_and_new_config_formats_are_equivalent(tmp_path_factory: pytest.TempPathFactory) -> None:
    newer, older = (load_model_config(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "starcoder2", older=older,
                                                           rope_parameters=LINEAR_ROPE)) for older in (False, True))
    assert newer == older


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_act": "silu"}, "hidden_act silu is not supported; supported: gelu, "),
    ({"mlp_type": "gated"}, "mlp_type gated is not supported; supported: default"),
    ({"norm_type": "rms_norm"}, "norm_type rms_norm is not supported; supported: layer_norm")])
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)
