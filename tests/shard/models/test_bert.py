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
    load_encoder_model,
    make_random_text,
    run_encoder,
    run_encoder_on_ranks,
)
from transformers import AutoModel

from shard.json_config import JsonConfig
from shard.models.encoder import EncoderConfig
from shard.models.registry import parse_model_config
from shard.parallel.group import SingleRankGroup
from shard.state.sequence import PoolingText

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
    config = parse_model_config(JsonConfig(PUBLISHED_CONFIG | changes, "config.json"))
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


# -- DistilBERT

PUBLISHED_DISTILBERT_CONFIG = {  # as published in distilbert-base-uncased-finetuned-conll03-english
    "activation": "gelu", "architectures": ["DistilBertForTokenClassification"], "attention_dropout": 0.1, "dim": 768,
    "dropout": 0.1, "finetuning_task": "ner", "hidden_dim": 3072, "id2label": {"0": "O", "1": "B-MISC"},
    "initializer_range": 0.02, "label2id": {"B-MISC": 1, "O": 0}, "max_position_embeddings": 512,
    "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "output_past": True, "pad_token_id": 0,
    "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
    "vocab_size": 28996}
EXPECTED_DISTILBERT_CONFIG = EncoderConfig(
    architecture="DistilBertForTokenClassification", vocabulary_size=28996, hidden_size=768, intermediate_size=3072,
    num_layers=6, num_heads=12, num_kv_heads=12, head_dim=64, norm_epsilon=1e-12, max_positions=512,
    dtype=torch.float32, attention_bias=True, mlp_bias=True, gelu_approximate="none", labels=("O", "B-MISC"))


def parse_published_distilbert(**changes: Any) -> Any:
    return parse_model_config(JsonConfig(PUBLISHED_DISTILBERT_CONFIG | changes, "config.json"))


@pytest.mark.slow
def test_distilbert_hidden_states_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_on_all_rank_counts(make_tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert"))


def test_distilbert_probabilities_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_matches_transformers(make_tiny_encoder(tmp_path_factory.getbasetemp(), "distilbert", labels=True),
                                       torch.float32, 2)


def test_distilbert_published_config_is_parsed() -> None:
    assert parse_published_distilbert() == EXPECTED_DISTILBERT_CONFIG


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"activation": "relu"}, "activation relu is not supported; supported: gelu, "),
    ({"dim": None}, "dim must be a whole number of at least 1, got None")], ids=str)
def test_distilbert_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_published_distilbert(**changes)


# -- XLM-RoBERTa

PADDING_TOKEN = 1
PUBLISHED_XLM_ROBERTA_CONFIG = {  # as published in intfloat/multilingual-e5-large
    "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
    "classifier_dropout": None, "eos_token_id": 2, "export_model_type": "transformer", "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "xlm-roberta", "num_attention_heads": 16,
    "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
    "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002}
EXPECTED_XLM_ROBERTA_CONFIG = EncoderConfig(
    architecture="XLMRobertaModel", vocabulary_size=250002, hidden_size=1024, intermediate_size=4096, num_layers=24,
    num_heads=16, num_kv_heads=16, head_dim=64, norm_epsilon=1e-5, max_positions=512, dtype=torch.float32,
    attention_bias=True, mlp_bias=True, gelu_approximate="none", num_token_types=1, padding_id=1)


def parse_published_xlm_roberta(**changes: Any) -> Any:
    return parse_model_config(JsonConfig(PUBLISHED_XLM_ROBERTA_CONFIG | changes, "config.json"))


@pytest.mark.slow
def test_xlm_roberta_hidden_states_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_on_all_rank_counts(make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta"))


def test_xlm_roberta_probabilities_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
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


def test_xlm_roberta_published_config_is_parsed() -> None:
    assert parse_published_xlm_roberta() == EXPECTED_XLM_ROBERTA_CONFIG
    assert parse_published_xlm_roberta(
        architectures=["XLMRobertaForTokenClassification"]).labels == ("LABEL_0", "LABEL_1")


def test_padding_token_that_leaves_no_position_is_rejected() -> None:
    with pytest.raises(ValueError, match="pad_token_id must leave positions of the 514"):
        parse_published_xlm_roberta(pad_token_id=513)


@pytest.mark.slow
def test_tensor_names_with_a_prefix_are_accepted(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    plain = make_tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    prefixed = write_converted_checkpoint(plain, tmp_path / "other", rename_tensor=lambda name: f"roberta.{name}")
    (expected,), (output,) = run_encoder_on_ranks(plain, torch.float32), run_encoder_on_ranks(prefixed, torch.float32)
    assert all(map(torch.equal, output, expected))
