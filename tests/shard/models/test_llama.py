from typing import Any

import pytest
from support.small_checkpoints import DYNAMIC, LINEAR, LLAMA3, YARN, tiny_checkpoint

from tests.shard.forward import agrees_shared

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama3, tied": {"dtype": "bfloat16", "rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "yarn": {"rope_parameters": YARN},
    "linear, wide heads": {"rope_parameters": LINEAR, "num_attention_heads": 8, "head_dim": 24},
    "dynamic, one key head": {"rope_parameters": DYNAMIC, "num_key_value_heads": 1},
    "biases": {"dtype": "bfloat16", "attention_bias": True, "mlp_bias": True},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "num_key_value_heads": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **changes)
    agrees_shared(folder)
