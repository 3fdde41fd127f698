from typing import Any

import pytest
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import LLAMA3_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_on_backends_and_ranks

VARIANTS: dict[str, dict[str, Any]] = {
    "a window, wide heads": {"dtype": "bfloat16", "head_dim": 24},
    "no window": {"sliding_window": None, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
}
ARCHITECTURE = "MistralForCausalLM"
SLIDING_LAYER_TYPES, FULL_LAYER_TYPES = ["sliding_attention"] * 4, ["full_attention"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "mistral", **changes))


@pytest.mark.parametrize(("changes", "windows"),
                         [({}, (4096,) * 4), ({"sliding_window": 32}, (32,) * 4), ({"sliding_window": None}, ()),
                          ({"sliding_window": 32, "layer_types": SLIDING_LAYER_TYPES}, (32,) * 4),
                          ({"sliding_window": None, "layer_types": FULL_LAYER_TYPES}, ())], ids=str)
def test_all_layers_have_the_same_window(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert make_model_config(ARCHITECTURE, **changes).sliding_windows == windows


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"sliding_window": 32, "layer_types": FULL_LAYER_TYPES},
     r"layer_types \['full_attention'\] with sliding_window 32 are not"),
    ({"sliding_window": None, "layer_types": SLIDING_LAYER_TYPES},
     "layer_types .*sliding_attention.* with sliding_window None"),
    ({"sliding_window": 0}, "sliding_window must be a whole number of at least 1, got 0"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
