from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_encoder

from shard.json_config import Given
from shard.models.encoder import EncoderConfig
from shard.models.read_config import describe_model
from tests.shard.encoders import agrees, agrees_shared

DISTILBERT = {  # as published in distilbert-base-uncased-finetuned-conll03-english
    "activation": "gelu", "architectures": ["DistilBertForTokenClassification"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "finetuning_task": "ner", "hidden_dim": 3072, "id2label": {"0": "O", "1": "B-MISC"},
    "initializer_range": 0.02, "label2id": {"B-MISC": 1, "O": 0}, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0,
    "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    "vocab_size": 28996}
CONFIG = EncoderConfig(
    architecture="DistilBertForTokenClassification", vocabulary_size=28996, hidden_size=768, intermediate_size=3072,
    num_layers=6, num_heads=12, num_kv_heads=12, head_dim=64, norm_epsilon=1e-12, max_positions=512,
    dtype=torch.float32, attention_bias=True, mlp_bias=True, approximate="none", labels=("O", "B-MISC"))


def read(**changes: Any) -> Any:
    return describe_model(Given(DISTILBERT | changes, "config.json"))


@pytest.mark.slow
def test_hidden_states_are_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees_shared(tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert"))


def test_probabilities_are_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert", labels=True), torch.float32, 2)


def test_a_config_as_it_was_published_is_read() -> None:
    assert read() == CONFIG


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"activation": "relu"}, "activation relu is not supported; supported: gelu, "),
    ({"dim": None}, "dim must be a whole number of at least 1, got None")], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(**changes)
