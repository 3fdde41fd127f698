import math
from typing import Any

import pytest
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_on_backends_and_ranks

from shard.layers.rotary import RotaryConfig

LONG_FACTORS, SHORT_FACTORS = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0], [1.0, 1.0, 1.0, 1.1, 1.2, 1.3]
LONGROPE_PARAMETERS = {"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": LONG_FACTORS,
                       "short_factor": SHORT_FACTORS, "partial_rotary_factor": 0.75}
VARIANTS: dict[str, dict[str, Any]] = {
    "a window": {"dtype": "bfloat16"},
    "beyond the original context, odd sizes": {
        "sliding_window": None, "rope_parameters": LONGROPE_PARAMETERS, "original_max_position_embeddings": 64,
        "intermediate_size": 131},
    "within the original context, tied": {
        "sliding_window": None, "rope_parameters": LONGROPE_PARAMETERS, "original_max_position_embeddings": 2048,
        "tie_word_embeddings": True, "num_key_value_heads": 1},
}
ARCHITECTURE = "Phi3ForCausalLM"
OLD_LONGROPE_CONFIG = {"original_max_position_embeddings": 1024, "partial_rotary_factor": 0.75,
                       "rope_scaling": {"type": "su", "long_factor": LONG_FACTORS, "short_factor": SHORT_FACTORS}}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "phi3", **changes))


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_old_names_of_longrope_are_accepted(kind: str) -> None:
    """A model with twice its original context uses the long factors for all sequences."""
    config = make_model_config(ARCHITECTURE,
                               **OLD_LONGROPE_CONFIG | {"rope_scaling": {"type": kind, "long_factor": LONG_FACTORS,
                                                                         "short_factor": SHORT_FACTORS}})
    assert config.rotary == RotaryConfig("longrope", 10000.0, scaling_factor=2.0, original_max_positions=1024,
                                         attention_factor=math.sqrt(1.1), rotated_fraction=0.75,
                                         frequency_divisors=tuple(LONG_FACTORS))
    assert config.max_positions == 2048


def test_short_factors_are_used_within_the_original_context() -> None:
    rotary = make_model_config(ARCHITECTURE, **OLD_LONGROPE_CONFIG | {"max_position_embeddings": 1024}).rotary
    assert (rotary.frequency_divisors, rotary.attention_factor) == (tuple(SHORT_FACTORS), 1.0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type linear is not supported; .* default, longrope"),
    ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 1024},
     "long_factor must be a list of numbers above 0, got None"),
    ({"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0.0]}}, r"short_factor must .* got \[1.0, 0.0\]"),
    (OLD_LONGROPE_CONFIG | {"partial_rotary_factor": 1.0},
     "8 pairs of a head are turned and need as many factors, got 6"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
