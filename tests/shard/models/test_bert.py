from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import LABELS, tiny_encoder

from shard.json_config import Given
from shard.models.encoder import EncoderConfig
from shard.models.read_config import describe_model
from tests.shard.encoders import agrees, agrees_shared, outcomes
from tests.shard.republished import republished

BERT = {  # as published in BAAI/bge-small-en-v1.5
    "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 384, "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02, "intermediate_size": 1536, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 0, "position_embedding_type": "absolute", "torch_dtype": "float32", "type_vocab_size": 2,
    "use_cache": True, "vocab_size": 30522}
CONFIG = EncoderConfig(
    architecture="BertModel", vocabulary_size=30522, hidden_size=384, intermediate_size=1536, num_layers=12,
    num_heads=12, num_kv_heads=12, head_dim=32, norm_epsilon=1e-12, max_positions=512, dtype=torch.float32,
    attention_bias=True, mlp_bias=True, approximate="none", num_types=2)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with labels": {"labels": True},
    "another activation, in bfloat16": {"hidden_act": "gelu_new", "dtype": "bfloat16"},
    "odd sizes": {"vocab_size": 509, "intermediate_size": 131, "num_attention_heads": 8, "type_vocab_size": 1},
}


def read(**changes: Any) -> EncoderConfig:
    config = describe_model(Given(BERT | changes, "config.json"))
    assert isinstance(config, EncoderConfig)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_probabilities_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_shared(tiny_encoder(tmp_path_factory.getbasetemp(), "bert", **changes))


def test_a_config_as_it_was_published_is_read() -> None:
    assert read() == CONFIG


def test_labels_come_in_the_order_of_their_numbers() -> None:
    named = read(architectures=["BertForTokenClassification"], id2label={"1": "B-PER", "0": "O"})
    assert named == replace(CONFIG, architecture="BertForTokenClassification", labels=("O", "B-PER"))
    assert read(architectures=["BertForTokenClassification"], id2label=None).labels == ("LABEL_0", "LABEL_1")


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"is_decoder": True}, "is_decoder true is not supported"),
    ({"add_cross_attention": True}, "add_cross_attention true is not supported"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type relative_key is not supported"),
    ({"hidden_act": "relu"}, "hidden_act relu is not supported; supported: gelu, "),
    ({"num_attention_heads": 7}, r"hidden size \(384\) must be a multiple of the number of attention heads \(7\)"),
    ({"architectures": ["BertForTokenClassification"], "id2label": {"1": "A"}}, "id2label must name labels by numbers"),
    ({"architectures": ["BertForMaskedLM"]}, "architecture BertForMaskedLM is not supported: .*BertModel")], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(**changes)


@pytest.mark.slow
def test_older_names_and_buffers_are_known(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    def older_name(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return f"bert.{name}"

    extra = {"bert.embeddings.position_ids": torch.arange(160)[None]}
    plain = tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    older = republished(plain, tmp_path / "older", extra=extra, name=older_name)
    (expected,), (found,) = outcomes(plain, torch.float32), outcomes(older, torch.float32)
    assert all(map(torch.equal, found, expected))


def test_the_labels_of_a_checkpoint_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=True)
    agrees(folder, torch.float32)
    (told,) = outcomes(folder, torch.float32)
    assert told[0].shape == (1, 64 + len(LABELS))
