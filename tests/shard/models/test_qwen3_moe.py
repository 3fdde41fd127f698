from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from shard.json_config import Given
from shard.models.qwen3_moe import dense_layers
from shard.models.read_config import describe_model
from shard.parallel.group import Alone
from tests.shard.forward import agrees, read_model, usual_distance

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shares as they are, biases": {"norm_topk_prob": False, "attention_bias": True},
    "every other layer": {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3],
                          "moe_intermediate_size": 40},
    "a window, older": {"dtype": "bfloat16", "use_sliding_window": True, "sliding_window": 24, "older": True},
}
PUBLISHED = {  # the relevant fields of Qwen3-30B-A3B
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936}


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **changes)
    for dtype, num_ranks in ((torch.float32, 1), (torch.float32, 4), (torch.bfloat16, 2)):
        agrees(folder, dtype, num_ranks, measure=usual_distance)


@pytest.mark.slow
def test_the_fast_attention_agrees(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **VARIANTS["a window, older"])
    agrees(folder, torch.float32, backend="cpu")


def test_the_first_layers_to_have_one_of_each_kind_reach_to_the_first_experts(
        tmp_path_factory: pytest.TempPathFactory) -> None:
    for changes, count in (({}, 1), (VARIANTS["every other layer"], 2)):
        folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3_moe", **changes)
        assert read_model(folder, torch.float32, Alone()).num_varied == count


def test_a_published_config_is_read() -> None:
    config = describe_model(Given(PUBLISHED, "config.json"))
    assert (config.num_experts, config.num_chosen, config.expert_size) == (128, 8, 768)  # type: ignore[attr-defined]
    assert config.normalised  # type: ignore[attr-defined]
    assert config.windows == config.dense_layers == ()  # type: ignore[attr-defined]


def test_the_number_of_experts_has_an_older_and_a_newer_name() -> None:
    newer = {name: value for name, value in PUBLISHED.items() if name != "num_experts"} | {"num_local_experts": 16}
    assert describe_model(Given(newer, "config.json")).num_experts == 16  # type: ignore[attr-defined]


def test_layers_without_experts_are_named_or_follow_from_the_step() -> None:
    assert dense_layers(Given({"mlp_only_layers": [1], "decoder_sparse_step": 3}, ""), 6) == (0, 1, 3, 4)


def test_more_chosen_experts_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"num_experts_per_tok must be at most the number of experts \(4\), got 8"):
        describe_model(Given(PUBLISHED | {"num_experts": 4}, "config.json"))
