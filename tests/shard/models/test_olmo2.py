from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_checkpoints import YARN, tiny_checkpoint

from shard.checkpoint.reader import Weights
from shard.models.decoder import Source
from shard.models.olmo2 import WholeNorm
from shard.parallel.group import Alone
from tests.shard.configs import read
from tests.shard.forward import CPU, agrees_everywhere

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "one key head, biases, tied": {
        "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
}
NAME = "Olmo2ForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo2", **changes))


@pytest.mark.slow
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_a_row_has_the_same_bits_in_any_company(
        whole_norm: WholeNorm, num_rows: int, place: int, seed: int) -> None:
    torch.manual_seed(seed)
    pair, place = torch.randn(2, 8, 16), place % (num_rows - 1)
    rows = torch.randn(num_rows, 8, 16)
    rows[place:place + 2] = pair
    assert torch.equal(whole_norm(rows[:, :6])[place:place + 2], whole_norm(pair[:, :6]))


@pytest.fixture(scope="module")
def whole_norm(tmp_path_factory: pytest.TempPathFactory) -> WholeNorm:
    with Weights(tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo2"), torch.float32, CPU) as weights:
        return WholeNorm(Source(read(NAME), weights, Alone()), 0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"layer_types": ["sliding_attention"]}, "layer_types .*sliding_attention.* are not supported"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
