from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_encoder
from support.model_runs.encoder_reference import check_encoder_matches_transformers, check_encoder_on_all_rank_counts

from shard.json_config import JsonConfig
from shard.models.encoder import EncoderConfig
from shard.models.read_config import parse_config_with_quantization

PUBLISHED_CONFIG = {  # as published in distilbert-base-uncased-finetuned-conll03-english
    "activation": "gelu", "architectures": ["DistilBertForTokenClassification"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "finetuning_task": "ner", "hidden_dim": 3072, "id2label": {"0": "O", "1": "B-MISC"},
    "initializer_range": 0.02, "label2id": {"B-MISC": 1, "O": 0}, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0,
    "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    "vocab_size": 28996}
EXPECTED_CONFIG = EncoderConfig(
    architecture="DistilBertForTokenClassification", vocabulary_size=28996, hidden_size=768, intermediate_size=3072,
    num_layers=6, num_heads=12, num_kv_heads=12, head_dim=64, norm_epsilon=1e-12, max_positions=512,
    dtype=torch.float32, attention_bias=True, mlp_bias=True, gelu_approximate="none", labels=("O", "B-MISC"))


def parse_config(**changes: Any) -> Any:
    return parse_config_with_quantization(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))


@pytest.mark.slow
def test_hidden_states_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_on_all_rank_counts(make_tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert"))


def test_probabilities_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_matches_transformers(make_tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert", labels=True),
                                       torch.float32, 2)


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"activation": "relu"}, "activation relu is not supported; supported: gelu, "),
    ({"dim": None}, "dim must be a whole number of at least 1, got None")], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_config(**changes)
