from typing import Any

import pytest
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import LINEAR_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_on_backends_and_ranks

from shard.layers.rotary import RotaryConfig

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "head norms, biases, untied": {
        "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False, "rope_parameters": LINEAR_ROPE},
}
ARCHITECTURE = "CohereForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "cohere", **changes))


def test_absent_settings_have_the_defaults_of_the_first_models() -> None:
    config = make_model_config(ARCHITECTURE)
    assert (config.tie_word_embeddings, config.logit_scale, config.norm_epsilon,
            config.has_qk_norm) == (True, 0.0625, 1e-5, False)
    assert config.rotary == RotaryConfig("default", 500_000.0, is_interleaved=True)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
    ({"logit_scale": 0}, "logit_scale must be a number above 0, got 0"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
