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
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    check_decoder_on_backends_and_ranks,
    load_decoder_model,
)
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from shard.layers.embedding import LMHead
from shard.layers.rotary import RotaryConfig
from shard.models.gemma import with_logit_softcap
from shard.parallel.group import SingleRankGroup

GEMMA, GEMMA2, GEMMA3 = "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"
MULTIMODAL_GEMMA3 = "Gemma3ForConditionalGeneration"
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
SCALED_ROPE = {FULL_ATTENTION: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
               SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": 1e4}}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # family, and changes of its config
    "gemma, plain": ("gemma", {"dtype": "bfloat16"}),
    "gemma, untied, biases, one key head": (
        "gemma", {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 1}),
    "gemma2, plain": ("gemma2", {"dtype": "bfloat16"}),
    "gemma2, no bounds, untied": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None,
                                             "layer_types": [FULL_ATTENTION, SLIDING_ATTENTION],
                                             "tie_word_embeddings": False, "attention_bias": True}),
    "gemma3, plain": ("gemma3", {"dtype": "bfloat16"}),
    "gemma3, stretched, bounded, untied": ("gemma3", {
        "rope_parameters": SCALED_ROPE, "final_logit_softcapping": 8.0,
        "layer_types": [FULL_ATTENTION, SLIDING_ATTENTION],
        "tie_word_embeddings": False, "attention_bias": True}),
}
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
@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, family: str, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, **changes))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 96 ** 0.5), (torch.bfloat16, 9.8125)], ids=str)
def test_embedding_scale_is_rounded_to_the_model_dtype(tmp_path: Path, dtype: torch.dtype, scale: float) -> None:
    model = load_decoder_model(make_tiny_checkpoint(tmp_path, "gemma", hidden_size=96), dtype, SingleRankGroup())
    assert model.embedding.scale == pytest.approx(scale, abs=1e-6)  # type: ignore[attr-defined]


def test_absent_settings_have_the_defaults_of_the_first_models() -> None:
    config = make_model_config(GEMMA, hidden_act="gelu")
    assert (config.tie_word_embeddings, config.head_dim, config.sliding_windows) == (True, 256, ())


def test_softcapped_logits_do_not_depend_on_other_rows() -> None:
    rows = 20 * torch.randn(33, 509)
    head = with_logit_softcap(LMHead(lambda x: x.clone(), SingleRankGroup(), 507), 30.0)
    batched = head(rows)
    assert batched is not None
    for place, row in enumerate(batched):
        alone = head(rows[place:place + 1])
        assert alone is not None
        assert torch.equal(alone[0], row)
        torch.testing.assert_close(row, (rows[place, :507] / 30).tanh() * 30)


def test_absent_settings_have_the_defaults_of_the_first_gemma2_models() -> None:
    config = make_model_config(GEMMA2)
    assert (config.attention_scale, config.attention_softcap, config.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert config.sliding_windows == (4096, 0, 4096, 0)


@pytest.mark.parametrize(("kinds", "windows"), [(None, (4096, 0, 4096, 0)),
                                                ([FULL_ATTENTION, FULL_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION],
                                                 (0, 0, 0, 4096)), ([FULL_ATTENTION] * 4, ())], ids=str)
def test_layer_types_may_be_listed(kinds: list[str] | None, windows: tuple[int, ...]) -> None:
    assert make_model_config(GEMMA2, layer_types=kinds).sliding_windows == windows


def test_null_disables_softcapping() -> None:
    config = make_model_config(GEMMA2, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (config.attention_softcap, config.logit_softcap) == (0.0, 0.0)


@pytest.mark.slow
def test_text_model_of_a_multimodal_checkpoint_matches_transformers(tmp_path: Path) -> None:
    folder = make_multimodal_checkpoint(tmp_path)
    assert "vision_config" in json.loads((folder / "config.json").read_text())
    check_decoder_matches_transformers(folder, torch.float32, 2)


def test_absent_settings_have_the_defaults_of_the_first_gemma3_models() -> None:
    config = make_model_config(GEMMA3, num_hidden_layers=7)
    assert config.sliding_windows == (4096, 4096, 4096, 4096, 4096, 0, 4096)
    assert (config.attention_scale, config.attention_softcap, config.logit_softcap,
            config.tie_word_embeddings) == (1 / 16, 0.0, 0.0, True)
    assert (config.rotary, config.local_rotary) == (RotaryConfig("default", 1e6), RotaryConfig("default", 1e4))


def test_old_and_new_rope_settings_are_equivalent() -> None:
    older = make_model_config(GEMMA3, rope_theta=5e5, rope_local_base_freq=2e4,
                              rope_scaling={"rope_type": "linear", "factor": 8.0}, sliding_window_pattern=2)
    newer = make_model_config(GEMMA3, layer_types=[SLIDING_ATTENTION, FULL_ATTENTION] * 2,
                              rope_parameters={FULL_ATTENTION: {"rope_type": "linear", "factor": 8.0,
                                                                "rope_theta": 5e5},
                                               SLIDING_ATTENTION: {"rope_theta": 2e4}})
    assert older == newer
    assert (older.rotary.rope_type, older.local_rotary,
            older.max_positions) == ("linear", RotaryConfig("default", 2e4), 2048)


def test_text_model_of_a_multimodal_config_has_defaults() -> None:
    config = make_model_config(MULTIMODAL_GEMMA3, torch_dtype="bfloat16", text_config={
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocabulary_size) == (8, 4, 256, 262208)
    assert (config.architecture, config.dtype,
            config.max_positions) == (MULTIMODAL_GEMMA3, torch.bfloat16, 131072)
    assert config.sliding_windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)


@pytest.mark.parametrize(("architecture", "changes", "complaint"), [
    (GEMMA, {"hidden_activation": "silu"}, "hidden_act silu is not supported; supported: gelu_pytorch_tanh, gelu"),
    (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    (GEMMA2, {"sliding_window": None}, "sliding_window must be a whole number of at least 1, got None"),
    (GEMMA2, {"hidden_activation": "gelu"}, "hidden_act gelu is not supported; supported: gelu_pytorch_tanh"),
    (GEMMA2, {"final_logit_softcapping": -1}, "final_logit_softcapping must be a number above 0, got -1"),
    (GEMMA2, {"layer_types": [FULL_ATTENTION]}, "layer_types has 1 entries for num_hidden_layers 4"),
    (GEMMA3, {"attn_logit_softcapping": 50.0},
     "attn_logit_softcapping is not supported for Gemma 3; supported: null"),
    (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
    (GEMMA3, {"rope_parameters": {SLIDING_ATTENTION: LINEAR_ROPE | {"rope_type": "ntk"}}},
     "rope_type ntk is not supported"),
    (MULTIMODAL_GEMMA3, {}, "text_config must be an object, got None"),
    (MULTIMODAL_GEMMA3, {"tie_word_embeddings": False, "text_config": DECODER_SIZES},
     "tie_word_embeddings false is not supported"),
], ids=str)
def test_unsupported_settings_are_rejected(
        architecture: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(architecture, **changes)
