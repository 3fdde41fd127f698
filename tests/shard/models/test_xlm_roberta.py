from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_encoder
from support.model_runs.encoder_reference import (
    check_encoder_matches_transformers,
    check_encoder_on_all_rank_counts,
    load_encoder_model,
    make_random_text,
    run_encoder,
    run_encoder_on_ranks,
)
from transformers import AutoModel

from shard.json_config import JsonConfig
from shard.models.encoder import EncoderConfig
from shard.models.read_config import parse_config_with_quantization
from shard.parallel.group import SingleRankGroup
from shard.state.pooling_text import PoolingText

PADDING_TOKEN = 1
PUBLISHED_CONFIG = {  # as published in intfloat/multilingual-e5-large
    "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
    "classifier_dropout": None, "eos_token_id": 2, "export_model_type": "transformer", "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "xlm-roberta", "num_attention_heads": 16,
    "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
    "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002}
EXPECTED_CONFIG = EncoderConfig(
    architecture="XLMRobertaModel", vocabulary_size=250002, hidden_size=1024, intermediate_size=4096, num_layers=24,
    num_heads=16, num_kv_heads=16, head_dim=64, norm_epsilon=1e-5, max_positions=512, dtype=torch.float32,
    attention_bias=True, mlp_bias=True, gelu_approximate="none", num_token_types=1, padding_id=1)


def parse_config(**changes: Any) -> Any:
    return parse_config_with_quantization(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))


@pytest.mark.slow
def test_hidden_states_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_on_all_rank_counts(make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta"))


def test_probabilities_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_matches_transformers(make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta", labels=True),
                                       torch.float32, 2)


@pytest.mark.parametrize("places", [[0], [3, 4], [9], list(range(10))], ids=str)
def test_a_text_may_hold_the_padding_token(tmp_path_factory: pytest.TempPathFactory, places: list[int]) -> None:
    """A padding token takes no position, as in transformers."""
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    tokens = [PADDING_TOKEN if place in places else token for place, token in enumerate(make_random_text(10).tokens)]
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        expected = AutoModel.from_pretrained(folder)(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    (output,) = run_encoder(load_encoder_model(folder, torch.float32, SingleRankGroup()), [PoolingText(tokens)])
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


def test_max_positions_exclude_those_reserved_for_padding(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    model = load_encoder_model(folder, torch.float32, SingleRankGroup())
    assert model.config.max_positions == 158
    assert model.config.compute_positions([5] * 158)[-1] == 159
    (output,) = run_encoder(model, [make_random_text(158)])
    assert output.isfinite().all()


def test_published_config_is_parsed() -> None:
    assert parse_config() == EXPECTED_CONFIG
    assert parse_config(architectures=["XLMRobertaForTokenClassification"]).labels == ("LABEL_0", "LABEL_1")


def test_padding_token_that_leaves_no_position_is_rejected() -> None:
    with pytest.raises(ValueError, match="pad_token_id must leave positions of the 514"):
        parse_config(pad_token_id=513)


@pytest.mark.slow
def test_tensor_names_with_a_prefix_are_accepted(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    plain = make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    prefixed = write_converted_checkpoint(plain, tmp_path / "other", rename_tensor=lambda name: f"roberta.{name}")
    (expected,), (output,) = run_encoder_on_ranks(plain, torch.float32), run_encoder_on_ranks(prefixed, torch.float32)
    assert all(map(torch.equal, output, expected))
