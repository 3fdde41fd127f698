from typing import Any

import pytest
from support.checkpoints.small_checkpoints import (
    DYNAMIC_ROPE,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    YARN_ROPE,
    make_tiny_checkpoint,
)
from support.model_runs.decoder_reference import check_decoder_on_all_rank_counts

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama3, tied": {"dtype": "bfloat16", "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "yarn": {"rope_parameters": YARN_ROPE},
    "linear, wide heads": {"rope_parameters": LINEAR_ROPE, "num_attention_heads": 8, "head_dim": 24},
    "dynamic, one key head": {"rope_parameters": DYNAMIC_ROPE, "num_key_value_heads": 1},
    "biases": {"dtype": "bfloat16", "attention_bias": True, "mlp_bias": True},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "num_key_value_heads": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **changes)
    check_decoder_on_all_rank_counts(folder)
