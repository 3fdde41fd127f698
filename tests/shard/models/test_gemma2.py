from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from shard.layers.embedding import Head
from shard.models.gemma2 import capped
from shard.parallel.group import Alone
from tests.shard.configs import read
from tests.shard.forward import agrees_everywhere

FULL, SLIDING = "full_attention", "sliding_attention"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "no bounds, untied": {"attn_logit_softcapping": None, "final_logit_softcapping": None,
                          "layer_types": [FULL, SLIDING], "tie_word_embeddings": False, "attention_bias": True},
}
NAME = "Gemma2ForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma2", **changes))


def test_a_row_of_bounded_logits_has_the_same_bits_in_any_company() -> None:
    rows = 20 * torch.randn(33, 509)
    head = capped(Head(lambda x: x.clone(), Alone(), 507), 30.0)
    together = head(rows)
    assert together is not None
    for place, row in enumerate(together):
        alone = head(rows[place:place + 1])
        assert alone is not None
        assert torch.equal(alone[0], row)
        torch.testing.assert_close(row, (rows[place, :507] / 30).tanh() * 30)


def test_what_files_leave_out_is_as_in_the_first_models() -> None:
    config = read(NAME)
    assert (config.scale, config.softcap, config.logit_softcap) == (1 / 16, 50.0, 30.0)
    assert config.windows == (4096, 0, 4096, 0)


@pytest.mark.parametrize(("kinds", "windows"), [
    (None, (4096, 0, 4096, 0)), ([FULL, FULL, FULL, SLIDING], (0, 0, 0, 4096)), ([FULL] * 4, ())], ids=str)
def test_layers_may_be_told_one_by_one(kinds: list[str] | None, windows: tuple[int, ...]) -> None:
    assert read(NAME, layer_types=kinds).windows == windows


def test_null_is_no_bound() -> None:
    config = read(NAME, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (config.softcap, config.logit_softcap) == (0.0, 0.0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"sliding_window": None}, "sliding_window must be a whole number of at least 1, got None"),
    ({"hidden_activation": "gelu"}, "hidden_act gelu is not supported; supported: gelu_pytorch_tanh"),
    ({"final_logit_softcapping": -1}, "final_logit_softcapping must be a number above 0, got -1"),
    ({"layer_types": [FULL]}, "layer_types has 1 entries for num_hidden_layers 4"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
