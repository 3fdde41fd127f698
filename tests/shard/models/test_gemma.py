from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from shard.parallel.group import Alone
from tests.shard.configs import read
from tests.shard.forward import agrees_everywhere, read_model

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": "bfloat16"},
    "untied, biases, one key head": {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 1},
}
NAME = "GemmaForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]) -> None:
    agrees_everywhere(tiny_checkpoint(tmp_path_factory.getbasetemp(), "gemma", **changes))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 96 ** 0.5), (torch.bfloat16, 9.8125)], ids=str)
def test_the_root_of_the_width_is_rounded_like_the_embedding(
        tmp_path: Path, dtype: torch.dtype, scale: float) -> None:
    model = read_model(tiny_checkpoint(tmp_path, "gemma", hidden_size=96), dtype, Alone())
    assert model.embedding.scale == pytest.approx(scale, abs=1e-6)  # type: ignore[attr-defined]


def test_what_files_leave_out_is_as_in_the_first_models() -> None:
    config = read(NAME, hidden_act="gelu")
    assert (config.tied, config.head_dim, config.windows) == (True, 256, ())


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"hidden_activation": "silu"}, "hidden_act silu is not supported; supported: gelu_pytorch_tanh, gelu"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is not supported"),
], ids=str)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(NAME, **changes)
