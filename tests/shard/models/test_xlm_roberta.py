from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_encoder
from transformers import AutoModel

from shard.json_config import Given
from shard.models.encoder import EncoderConfig
from shard.models.read_config import describe_model
from shard.parallel.group import Alone
from shard.state.columns import Text
from tests.shard.encoders import agrees, agrees_shared, outcomes, read_model, run, text
from tests.shard.republished import republished

PADDING = 1
XLM_ROBERTA = {  # as published in intfloat/multilingual-e5-large
    "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
    "classifier_dropout": None, "eos_token_id": 2, "export_model_type": "transformer", "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "xlm-roberta", "num_attention_heads": 16,
    "num_hidden_layers": 24, "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute",
    "torch_dtype": "float32", "type_vocab_size": 1, "use_cache": True, "vocab_size": 250002}
CONFIG = EncoderConfig(
    architecture="XLMRobertaModel", vocabulary_size=250002, hidden_size=1024, intermediate_size=4096, num_layers=24,
    num_heads=16, num_kv_heads=16, head_dim=64, norm_epsilon=1e-5, max_positions=512, dtype=torch.float32,
    attention_bias=True, mlp_bias=True, approximate="none", num_types=1, padding=1)


def read(**changes: Any) -> Any:
    return describe_model(Given(XLM_ROBERTA | changes, "config.json"))


@pytest.mark.slow
def test_hidden_states_are_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees_shared(tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta"))


def test_probabilities_are_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta", labels=True), torch.float32, 2)


@pytest.mark.parametrize("places", [[0], [3, 4], [9], list(range(10))], ids=str)
def test_a_text_may_hold_the_padding_token(tmp_path_factory: pytest.TempPathFactory, places: list[int]) -> None:
    """A padding token takes no position, as in transformers."""
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    tokens = [PADDING if place in places else token for place, token in enumerate(text(10).tokens)]
    with torch.inference_mode():
        ids = torch.tensor([tokens])
        expected = AutoModel.from_pretrained(folder)(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    (found,) = run(read_model(folder, torch.float32, Alone()), [Text(tokens)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_longest_text_is_shorter_than_the_table_of_positions(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    model = read_model(folder, torch.float32, Alone())
    assert model.config.max_positions == 158
    assert model.config.positions([5] * 158)[-1] == 159
    (found,) = run(model, [text(158)])
    assert found.isfinite().all()


def test_a_config_as_it_was_published_is_read() -> None:
    assert read() == CONFIG
    assert read(architectures=["XLMRobertaForTokenClassification"]).labels == ("LABEL_0", "LABEL_1")


def test_a_padding_token_that_leaves_no_position_is_refused() -> None:
    with pytest.raises(ValueError, match="pad_token_id must leave positions of the 514"):
        read(pad_token_id=513)


@pytest.mark.slow
def test_names_with_a_prefix_are_known(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    plain = tiny_encoder(tmp_path_factory.getbasetemp(), "xlm_roberta")
    other = republished(plain, tmp_path / "other", name=lambda name: f"roberta.{name}")
    (expected,), (found,) = outcomes(plain, torch.float32), outcomes(other, torch.float32)
    assert all(map(torch.equal, found, expected))
