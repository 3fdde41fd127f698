from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.model_configs import make_model_config
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_on_backends_and_ranks, load_decoder_model

from shard.parallel.group import SingleRankGroup

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "untied, biases, one key head": {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 1},
}
ARCHITECTURE = "GemmaForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    check_decoder_on_backends_and_ranks(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma", **changes))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 96 ** 0.5), (torch.bfloat16, 9.8125)], ids=str)
def test_embedding_scale_is_rounded_to_the_model_dtype(tmp_path: Path, dtype: torch.dtype, scale: float) -> None:
    model = load_decoder_model(make_tiny_checkpoint(tmp_path, "gemma", hidden_size=96), dtype, SingleRankGroup())
    assert model.embedding.scale == pytest.approx(scale, abs=1e-6)  # type: ignore[attr-defined]


def test_absent_settings_have_the_defaults_of_the_first_models() -> None:
    config = make_model_config(ARCHITECTURE, hidden_act="gelu")
    assert (config.tie_word_embeddings, config.head_dim, config.sliding_windows) == (True, 256, ())


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_activation": "silu"}, "hidden_act silu is not supported; supported: gelu_pytorch_tanh, gelu"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
], ids=str)
def test_unsupported_settings_are_rejected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_model_config(ARCHITECTURE, **changes)
