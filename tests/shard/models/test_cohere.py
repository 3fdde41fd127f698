from typing import Any

import pytest
from support.small_checkpoints import LINEAR, tiny_checkpoint

from shard.models.config import Rotary
from tests.shard.configs import read
from tests.shard.forward import agrees_everywhere

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "head norms, biases, untied": {
        "use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False, "rope_parameters": LINEAR},
}
NAME = "CohereForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "cohere", **changes))


def test_what_files_leave_out_is_as_in_the_first_models() -> None:
    config = read(NAME)
    assert (config.tied, config.logit_scale, config.norm_epsilon, config.head_norms) == (True, 0.0625, 1e-5, False)
    assert config.rotary == Rotary("default", 500_000.0, neighbours=True)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
    ({"logit_scale": 0}, "logit_scale must be a number above 0, got 0"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
