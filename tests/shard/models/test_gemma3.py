import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import (
    DECODER_SIZES,
    LINEAR_ROPE,
    MODEL_FAMILIES,
    make_random_model,
    make_tiny_checkpoint,
)
from support.model_runs.decoder_reference import check_decoder_matches_transformers, check_decoder_on_backends_and_ranks
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from shard.layers.rotary import RotaryConfig

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
SCALED_ROPE = {FULL_ATTENTION: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
               SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": 1e4}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "stretched, bounded, untied": {
        "rope_parameters": SCALED_ROPE, "final_logit_softcapping": 8.0,
        "layer_types": [FULL_ATTENTION, SLIDING_ATTENTION],
        "tie_word_embeddings": False, "attention_bias": True},
}
ARCHITECTURE, MULTIMODAL_ARCHITECTURE = "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"
VISION_SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                "image_size": 28, "patch_size": 14}


def make_multimodal_checkpoint(folder: Path) -> Path:
    """Save a vision-language model whose text model is the usual tiny one, and return its folder."""
    text = Gemma3TextConfig(**DECODER_SIZES | MODEL_FAMILIES["gemma3"][2])
    model = Gemma3ForConditionalGeneration(Gemma3Config(
        text_config=text.to_dict(), vision_config=SiglipVisionConfig(**VISION_SIZES).to_dict(), mm_tokens_per_image=1,
        image_token_index=511, boi_token_index=510, eoi_token_index=509))
    model.model.language_model.load_state_dict(make_random_model("gemma3", torch.float32, 0, {}).model.state_dict())
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma3", **changes))


@pytest.mark.slow
def test_text_model_of_a_multimodal_checkpoint_matches_transformers(tmp_path: Path) -> None:
    folder = make_multimodal_checkpoint(tmp_path)
    assert "vision_config" in json.loads((folder / "config.json").read_text())
    check_decoder_matches_transformers(folder, torch.float32, 2)


def test_absent_settings_have_the_defaults_of_the_first_models() -> None:
    config = make_model_config(ARCHITECTURE, num_hidden_layers=7)
    assert config.sliding_windows == (4096, 4096, 4096, 4096, 4096, 0, 4096)
    assert (config.attention_scale, config.attention_softcap, config.logit_softcap,
            config.tie_word_embeddings) == (1 / 16, 0.0, 0.0, True)
    assert (config.rotary, config.local_rotary) == (RotaryConfig("default", 1e6), RotaryConfig("default", 1e4))


def test_old_and_new_rope_settings_are_equivalent() -> None:
    older = make_model_config(ARCHITECTURE, rope_theta=5e5, rope_local_base_freq=2e4,
                              rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=2)
    newer = make_model_config(ARCHITECTURE, layer_types=[SLIDING_ATTENTION, FULL_ATTENTION] * 2,
                              rope_parameters={FULL_ATTENTION: {"rope_type": "linear", "factor": 8.0,
                                                                "rope_theta": 5e5},
                                               SLIDING_ATTENTION: {"rope_theta": 2e4}})
    assert older == newer
    assert (older.rotary.rope_type, older.local_rotary,
            older.max_positions) == ("linear", RotaryConfig("default", 2e4), 2048)


def test_text_model_of_a_multimodal_config_has_defaults() -> None:
    config = make_model_config(MULTIMODAL_ARCHITECTURE, torch_dtype="bfloat16", text_config={
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocabulary_size) == (8, 4, 256, 262208)
    assert (config.architecture, config.dtype,
            config.max_positions) == (MULTIMODAL_ARCHITECTURE, torch.bfloat16, 131072)
    assert config.sliding_windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)


@pytest.mark.parametrize(("architecture", "changes", "complaint"), [
    (ARCHITECTURE, {"attn_logit_softcapping": 50.0},
     "attn_logit_softcapping is not supported for Gemma 3; supported: null"),
    (ARCHITECTURE, {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    (ARCHITECTURE, {"rope_parameters": {SLIDING_ATTENTION: LINEAR_ROPE | {"rope_type": "ntk"}}},
     "rope_type ntk is not supported"),
    (MULTIMODAL_ARCHITECTURE, {}, "text_config must be an object, got None"),
    (MULTIMODAL_ARCHITECTURE, {"tie_word_embeddings": False, "text_config": DECODER_SIZES},
     "tie_word_embeddings false is not supported"),
], ids=str)
def test_unsupported_settings_are_rejected(
        architecture: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(architecture, **changes)
