from typing import Any

import pytest
from support.small_checkpoints import LLAMA3, tiny_checkpoint

from tests.shard.configs import read
from tests.shard.forward import agrees_everywhere

VARIANTS: dict[str, dict[str, Any]] = {
    "a window, wide heads": {"dtype": "bfloat16", "head_dim": 24},
    "no window": {"sliding_window": None, "rope_parameters": LLAMA3, "tie_word_embeddings": True},
}
NAME = "MistralForCausalLM"
SLIDING, FULL = ["sliding_attention"] * 4, ["full_attention"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "mistral", **changes))


@pytest.mark.parametrize(("changes", "windows"), [
    ({}, (4096,) * 4), ({"sliding_window": 32}, (32,) * 4), ({"sliding_window": None}, ()),
    ({"sliding_window": 32, "layer_types": SLIDING}, (32,) * 4), ({"sliding_window": None, "layer_types": FULL}, ()),
], ids=str)
def test_all_layers_have_the_same_window(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert read(NAME, **changes).windows == windows


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"sliding_window": 32, "layer_types": FULL}, r"layer_types \['full_attention'\] with sliding_window 32 are not"),
    ({"sliding_window": None, "layer_types": SLIDING}, "layer_types .*sliding_attention.* with sliding_window None"),
    ({"sliding_window": 0}, "sliding_window must be a whole number of at least 1, got 0"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
