import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import FAMILIES, LINEAR, SIZES, random_model, tiny_checkpoint
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from shard.models.config import Rotary
from tests.shard.configs import read
from tests.shard.forward import agrees, agrees_everywhere

FULL, SLIDING = "full_attention", "sliding_attention"
SCALED = {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
          SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "stretched, bounded, untied": {
        "rope_parameters": SCALED, "final_logit_softcapping": 8.0, "layer_types": [FULL, SLIDING],
        "tie_word_embeddings": False, "attention_bias": True},
}
NAME, SEEING = "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"
SIGHT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 28, "patch_size": 14}


def seeing_checkpoint(folder: Path) -> Path:
    """Save a vision-language model whose text model is the usual tiny one, and return its folder."""
    text = Gemma3TextConfig(**SIZES | FAMILIES["gemma3"][2])
    model = Gemma3ForConditionalGeneration(Gemma3Config(
        text_config=text.to_dict(), vision_config=SiglipVisionConfig(**SIGHT).to_dict(), mm_tokens_per_image=1,
        image_token_index=511, boi_token_index=510, eoi_token_index=509))
    model.model.language_model.load_state_dict(random_model("gemma3", torch.float32, 0, {}).model.state_dict())
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma3", **changes))


@pytest.mark.slow
def test_the_text_of_a_model_that_also_sees_is_read(tmp_path: Path) -> None:
    folder = seeing_checkpoint(tmp_path)
    assert "vision_config" in json.loads((folder / "config.json").read_text())
    agrees(folder, torch.float32, 2)


def test_what_files_leave_out_is_as_in_the_first_models() -> None:
    config = read(NAME, num_hidden_layers=7)
    assert config.windows == (4096, 4096, 4096, 4096, 4096, 0, 4096)
    assert (config.scale, config.softcap, config.logit_softcap, config.tied) == (1 / 16, 0.0, 0.0, True)
    assert (config.rotary, config.local_rotary) == (Rotary("default", 1e6), Rotary("default", 1e4))


def test_older_and_newer_files_say_the_same_of_positions() -> None:
    older = read(NAME, rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling={"rope_type": "linear", "factor": 8.0},
                 sliding_window_pattern=2)
    newer = read(NAME, layer_types=[SLIDING, FULL] * 2, rope_parameters={
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}, SLIDING: {"rope_theta": 2e4}})
    assert older == newer
    assert (older.rotary.kind, older.local_rotary, older.max_positions) == ("linear", Rotary("default", 2e4), 2048)


def test_a_model_that_also_sees_says_little_of_its_text() -> None:
    config = read(SEEING, torch_dtype="bfloat16", text_config={
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocabulary_size) == (8, 4, 256, 262208)
    assert (config.architecture, config.dtype, config.max_positions) == (SEEING, torch.bfloat16, 131072)
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)


@pytest.mark.parametrize(("architecture", "changes", "complaint"), [
    (NAME, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported for Gemma 3; supported: null"),
    (NAME, {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    (NAME, {"rope_parameters": {SLIDING: LINEAR | {"rope_type": "ntk"}}}, "rope_type ntk is not supported"),
    (SEEING, {}, "text_config must be an object, got None"),
    (SEEING, {"tie_word_embeddings": False, "text_config": SIZES}, "tie_word_embeddings false is not supported"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(
        architecture: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(architecture, **changes)
