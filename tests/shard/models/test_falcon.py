from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import LINEAR, tiny_checkpoint

from shard.json_config import Given
from shard.models.config import Rotary
from shard.models.decoder import check_ranks
from shard.models.falcon import FalconConfig
from shard.models.read_config import describe_model, read_config
from tests.shard.forward import agrees, agrees_shared, outcomes
from tests.shard.republished import republished

FALCON_7B = {  # as published in tiiuae/falcon-7b
    "alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
    "hidden_size": 4544, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
    "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
    "num_kv_heads": 71, "parallel_attn": True, "torch_dtype": "bfloat16", "transformers_version": "4.27.4",
    "use_cache": True, "vocab_size": 65024}
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8}
FALCON_11B = FALCON_40B | {
    "activation": "gelu", "ff_factor": 4, "ffn_hidden_size": 16384, "hidden_size": 4096,
    "max_position_embeddings": 8192, "num_attention_heads": 32, "num_ln_in_parallel_attn": 1, "rope_scaling": None,
    "rope_theta": 500042.0, "tie_word_embeddings": False}
CONFIG = FalconConfig(
    architecture="FalconForCausalLM", vocabulary_size=65024, hidden_size=4544, intermediate_size=18176, num_layers=32,
    num_heads=71, num_kv_heads=1, head_dim=64, norm_epsilon=1e-5, max_positions=2048, dtype=torch.bfloat16,
    rotary=Rotary("default", 10000.0), tied=True, approximate="none", parallel=True, num_norms=1)
SEVEN: dict[str, Any] = {"new_decoder_architecture": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "40B": {},
    "11B": {"dtype": "bfloat16", "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 131, "bias": True,
            "tie_word_embeddings": False, "rope_parameters": LINEAR},
    "7B": SEVEN,
    "a key head for each query, biases": SEVEN | {"multi_query": False, "num_kv_heads": 4, "bias": True},
    "one half after the other": SEVEN | {"dtype": "bfloat16", "parallel_attn": False, "activation": "gelu_new"},
}


def read(values: dict[str, Any], **changes: Any) -> FalconConfig:
    config = describe_model(Given(values | changes, "config.json"))
    assert isinstance(config, FalconConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon", **changes)
    agrees_shared(folder)
    agrees(folder, torch.float32, backend="cpu")


@pytest.mark.slow
def test_more_queries_than_a_tile_has_rows_share_a_key_head(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon", hidden_size=136, num_attention_heads=17, **SEVEN)
    agrees(folder, torch.float32, backend="cpu")


@pytest.mark.parametrize(("values", "expected"), [
    (FALCON_7B, CONFIG),
    (FALCON_40B, replace(CONFIG, hidden_size=8192, intermediate_size=32768, num_layers=60, num_heads=128,
                         num_kv_heads=8, num_norms=2)),
    (FALCON_11B, replace(CONFIG, hidden_size=4096, intermediate_size=16384, num_layers=60, num_heads=32, num_kv_heads=8,
                         head_dim=128, max_positions=8192, rotary=Rotary("default", 500042.0), tied=False)),
], ids=["7B", "40B", "11B"])
def test_configs_in_the_words_of_their_time_are_read(values: dict[str, Any], expected: FalconConfig) -> None:
    assert read(values) == expected


def test_older_words_say_the_same() -> None:
    older = {"n_head": 128, "n_layer": 60, "n_head_kv": 8, "n_embed": 8192}
    newer = ("num_attention_heads", "num_hidden_layers", "num_kv_heads", "hidden_size")
    without = {name: value for name, value in FALCON_40B.items() if name not in newer}
    assert read(without, **older) == read(FALCON_40B)


def test_what_a_file_says_counts() -> None:
    changes = {"bias": True, "parallel_attn": False, "activation": "gelu_new", "multi_query": False}
    assert read(FALCON_7B, **changes) == replace(
        CONFIG, attention_bias=True, mlp_bias=True, parallel=False, num_norms=2, approximate="tanh", num_kv_heads=71)


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"alibi": True}, "alibi true is not supported; supported: false"),
    ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm true is not"),
    ({"activation": "relu"}, "activation relu is not supported; supported: gelu, "),
    ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn may be at most 1 with new_decoder_.* false, got 2"),
    ({"num_attention_heads": 7}, r"hidden size \(4544\) must be a multiple of the number of attention heads \(7\)"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(FALCON_7B, **changes)


def test_ranks_that_cannot_share_71_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="2 shards cannot share 71 attention heads with 1 key/value heads"):
        check_ranks(read(FALCON_7B), 2)


@pytest.mark.slow
def test_a_head_that_is_stored_twice_is_read_once(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The files of Falcon 7B store the head although it is tied to the embedding."""
    extra = {f"transformer.h.{layer}.self_attention.rotary_emb.inv_freq": torch.ones(8) for layer in range(2)}
    plain = tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon")
    older = republished(plain, tmp_path / "older", extra=extra | {"lm_head.weight": torch.zeros(512, 64)})
    assert read_config(older) == read_config(plain)
    (expected,), (found,) = outcomes(plain, torch.float32), outcomes(older, torch.float32)
    assert found.logits is not None
    assert expected.logits is not None
    assert torch.equal(found.logits, expected.logits)
