from typing import Any

import pytest
import torch
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_on_backends_and_ranks

from shard.layers.embedding import LMHead
from shard.models.gemma2 import with_logit_softcap
from shard.parallel.group import SingleRankGroup

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "no bounds, untied": {"attn_logit_softcapping": None, "final_logit_softcapping": None,
                          "layer_types": [FULL_ATTENTION, SLIDING_ATTENTION], "tie_word_embeddings": False,
                          "attention_bias": True},
}
ARCHITECTURE = "Gemma2ForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma2", **changes))


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


def test_absent_settings_have_the_defaults_of_the_first_models() -> None:
    config = make_model_config(ARCHITECTURE)
    assert (config.attention_scale, config.attention_softcap, config.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert config.sliding_windows == (4096, 0, 4096, 0)


@pytest.mark.parametrize(("kinds", "windows"), [(None, (4096, 0, 4096, 0)),
                                                ([FULL_ATTENTION, FULL_ATTENTION, FULL_ATTENTION, SLIDING_ATTENTION],
                                                 (0, 0, 0, 4096)), ([FULL_ATTENTION] * 4, ())], ids=str)
def test_layer_types_may_be_listed(kinds: list[str] | None, windows: tuple[int, ...]) -> None:
    assert make_model_config(ARCHITECTURE, layer_types=kinds).sliding_windows == windows


def test_null_disables_softcapping() -> None:
    config = make_model_config(ARCHITECTURE, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (config.attention_softcap, config.logit_softcap) == (0.0, 0.0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"sliding_window": None}, "sliding_window must be a whole number of at least 1, got None"),
    ({"hidden_activation": "gelu"}, "hidden_act gelu is not supported; supported: gelu_pytorch_tanh"),
    ({"final_logit_softcapping": -1}, "final_logit_softcapping must be a number above 0, got -1"),
    ({"layer_types": [FULL_ATTENTION]}, "layer_types has 1 entries for num_hidden_layers 4"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
