from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import YARN_ROPE, make_tiny_checkpoint
from support.model_runs.decoder_reference import CPU, check_decoder_on_backends_and_ranks

from shard.checkpoint.reader import CheckpointReader
from shard.models.decoder import ModelLoader
from shard.models.olmo2 import GlobalQKNorm
from shard.parallel.group import SingleRankGroup

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "one key head, biases, tied": {
        "num_key_value_heads": 1, "attention_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN_ROPE},
}
ARCHITECTURE = "Olmo2ForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo2", **changes))


@pytest.mark.slow
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_norm_does_not_depend_on_other_rows(
        global_qk_norm: GlobalQKNorm, num_rows: int, place: int, seed: int) -> None:
    torch.manual_seed(seed)
    pair, place = torch.randn(2, 8, 16), place % (num_rows - 1)
    rows = torch.randn(num_rows, 8, 16)
    rows[place:place + 2] = pair
    assert torch.equal(global_qk_norm(rows[:, :6])[place:place + 2], global_qk_norm(pair[:, :6]))


@pytest.fixture(scope="module")
def global_qk_norm(tmp_path_factory: pytest.TempPathFactory) -> GlobalQKNorm:
    with CheckpointReader(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "olmo2"), torch.float32, CPU) as weights:
        return GlobalQKNorm(ModelLoader(make_model_config(ARCHITECTURE), weights, SingleRankGroup()), 0)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"layer_types": ["sliding_attention"]}, "layer_types .*sliding_attention.* are not supported"),
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
