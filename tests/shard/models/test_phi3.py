import math
from typing import Any

import pytest
from support.small_checkpoints import tiny_checkpoint

from shard.models.config import Rotary
from tests.shard.configs import read
from tests.shard.forward import agrees_everywhere

LONG, SHORT = [1.0, 1.5, 2.0, 3.0, 5.0, 8.0], [1.0, 1.0, 1.0, 1.1, 1.2, 1.3]
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": LONG, "short_factor": SHORT,
            "partial_rotary_factor": 0.75}
VARIANTS: dict[str, dict[str, Any]] = {
    "a window": {"dtype": "bfloat16"},
    "beyond the original context, odd sizes": {
        "sliding_window": None, "rope_parameters": LONGROPE, "original_max_position_embeddings": 64,
        "intermediate_size": 131},
    "within the original context, tied": {
        "sliding_window": None, "rope_parameters": LONGROPE, "original_max_position_embeddings": 2048,
        "tie_word_embeddings": True, "num_key_value_heads": 1},
}
NAME = "Phi3ForCausalLM"
OLDER = {"original_max_position_embeddings": 1024, "partial_rotary_factor": 0.75,
         "rope_scaling": {"type": "su", "long_factor": LONG, "short_factor": SHORT}}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "phi3", **changes))


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_older_files_know_longrope_by_other_names(kind: str) -> None:
    """A model with twice its original context uses the long factors for all sequences."""
    config = read(NAME, **OLDER | {"rope_scaling": {"type": kind, "long_factor": LONG, "short_factor": SHORT}})
    assert config.rotary == Rotary(
        "longrope", 10000.0, factor=2.0, original_positions=1024, amplitude=math.sqrt(1.1), share=0.75,
        factors=tuple(LONG))
    assert config.max_positions == 2048


def test_a_model_that_reaches_no_further_than_before_has_the_factors_of_short_sequences() -> None:
    rotary = read(NAME, **OLDER | {"max_position_embeddings": 1024}).rotary
    assert (rotary.factors, rotary.amplitude) == (tuple(SHORT), 1.0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type linear is not supported; .* default, longrope"),
    ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 1024},
     "long_factor must be a list of numbers above 0, got None"),
    ({"rope_scaling": {"type": "longrope", "short_factor": [1.0, 0.0]}}, r"short_factor must .* got \[1.0, 0.0\]"),
    (OLDER | {"partial_rotary_factor": 1.0}, "8 pairs of a head are turned and need as many factors, got 6"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
