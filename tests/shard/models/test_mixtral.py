from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_matches_transformers, median_token_distance

from shard.json_config import JsonConfig
from shard.models.registry import parse_model_config

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "many experts": {"num_local_experts": 16, "num_experts_per_tok": 5, "head_dim": 24},
    "one expert of one": {"num_local_experts": 1, "num_experts_per_tok": 1, "vocab_size": 509},
    "a window, older": {"dtype": "bfloat16", "sliding_window": 24, "older": True},
}
MINIMAL_CONFIG = {"architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 64,
                  "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "mixtral", **changes)
    for dtype, num_ranks in ((torch.float32, 1), (torch.float32, 4), (torch.bfloat16, 2)):
        check_decoder_matches_transformers(folder, dtype, num_ranks, distance_function=median_token_distance)


@pytest.mark.slow
def test_cpu_attention_matches_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "mixtral", **VARIANTS["a window, older"])
    check_decoder_matches_transformers(folder, torch.float32, backend="cpu")


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_act": "gelu"}, "hidden_act gelu is not supported; supported: silu"),
    ({"num_experts_per_tok": 9}, r"num_experts_per_tok must be at most the number of experts \(8\), got 9"),
    ({"num_local_experts": 0}, "num_local_experts must be a whole number of at least 1, got 0"),
])
def test_invalid_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_model_config(JsonConfig(MINIMAL_CONFIG | changes, "config.json"))
