from pathlib import Path

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from tests.shard.forward import agrees, outcomes
from tests.shard.republished import republished


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_and_logits_are_transformers(
        tmp_path_factory: pytest.TempPathFactory, bias: bool, num_ranks: int, dtype: torch.dtype) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", dtype="bfloat16", attention_bias=bias)
    agrees(folder, dtype, num_ranks)


@pytest.mark.slow
def test_a_file_of_a_model_without_its_head_is_read(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """Qwen3-Embedding is published like this: names lack the `model.` prefix, and the head is the embedding."""
    plain = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", tie_word_embeddings=True)
    other = republished(plain, tmp_path / "other", name=lambda name: name.removeprefix("model."))
    (expected,), (found,) = outcomes(plain, torch.float32), outcomes(other, torch.float32)
    assert torch.equal(found.hidden, expected.hidden)
