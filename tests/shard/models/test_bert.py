from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import TOKEN_LABELS, make_tiny_encoder
from support.model_runs.encoder_reference import (
    check_encoder_matches_transformers,
    check_encoder_on_all_rank_counts,
    run_encoder_on_ranks,
)

from shard.json_config import JsonConfig
from shard.models.encoder import EncoderConfig
from shard.models.read_config import parse_config_with_quantization

PUBLISHED_CONFIG = {  # as published in BAAI/bge-small-en-v1.5
    "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02, "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 0, "position_embedding_type": "absolute", "torch_dtype": "float32", "type_vocab_size": 2,
    "use_cache": True, "vocab_size": 30522}
EXPECTED_CONFIG = EncoderConfig(
    architecture="BertModel", vocabulary_size=30522, hidden_size=384, intermediate_size=1536, num_layers=12,
    num_heads=12, num_kv_heads=12, head_dim=32, norm_epsilon=1e-12, max_positions=512, dtype=torch.float32,
    attention_bias=True, mlp_bias=True, gelu_approximate="none", num_token_types=2)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with labels": {"labels": True},
    "another activation, in bfloat16": {"hidden_act": "gelu_new", "dtype": "bfloat16"},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "num_attention_heads": 8, "type_vocab_size": 1},
}


def parse_config(**changes: Any) -> EncoderConfig:
    config = parse_config_with_quantization(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))
    assert isinstance(config, EncoderConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_probabilities_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_encoder_on_all_rank_counts(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", **changes))


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


def test_labels_are_ordered_by_their_ids() -> None:
    named = parse_config(architectures=["BertForTokenClassification"], id2label={"1": "B-PER", "0": "O"})
    assert named == replace(EXPECTED_CONFIG, architecture="BertForTokenClassification", labels=("O", "B-PER"))
    assert parse_config(architectures=["BertForTokenClassification"], id2label=None).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"is_decoder": True}, "is_decoder true is not supported"),
    ({"add_cross_attention": True}, "add_cross_attention true is not supported"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type relative_key is not supported"),
    ({"hidden_act": "relu"}, "hidden_act relu is not supported; supported: gelu, "),
    ({"num_attention_heads": 7}, r"hidden size \(384\) must be a multiple of the number of attention heads \(7\)"),
    ({"architectures": ["BertForTokenClassification"], "id2label": {"1": "A"}}, "id2label must name labels by numbers"),
    ({"architectures": ["BertForMaskedLM"]}, "architecture BertForMaskedLM is not supported: .*BertModel")], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)


@pytest.mark.slow
def test_old_tensor_names_and_buffers_are_accepted(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    def make_old_name(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return f"bert.{name}"

    extra = {"bert.embeddings.position_ids": torch.arange(160)[None]}
    plain = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    older = write_converted_checkpoint(plain, tmp_path / "older", extra_tensors=extra, rename_tensor=make_old_name)
    (expected,), (output,) = run_encoder_on_ranks(plain, torch.float32), run_encoder_on_ranks(older, torch.float32)
    assert all(map(torch.equal, output, expected))


def test_the_labels_of_a_checkpoint_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=True)
    check_encoder_matches_transformers(folder, torch.float32)
    (outputs,) = run_encoder_on_ranks(folder, torch.float32)
    assert outputs[0].shape == (1, 64 + len(TOKEN_LABELS))
