from pathlib import Path

import pytest
import torch
from support.checkpoints.older_checkpoints import write_converted_checkpoint
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_matches_transformers, run_forward_on_ranks


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, bias: bool, num_ranks: int, dtype: torch.dtype) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", dtype="bfloat16", attention_bias=bias)
    check_decoder_matches_transformers(folder, dtype, num_ranks)


@pytest.mark.slow
def test_checkpoint_without_head_and_name_prefix_is_read(tmp_path_factory: pytest.TempPathFactory,
                                                         tmp_path: Path) -> None:
    """Qwen3-Embedding is published like this: names lack the `model.` prefix, and the head is the embedding."""
    plain = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen3", tie_word_embeddings=True)
    unprefixed = write_converted_checkpoint(plain, tmp_path / "other",
                                            rename_tensor=lambda name: name.removeprefix("model."))
    (expected,), (output,) = run_forward_on_ranks(plain, torch.float32), run_forward_on_ranks(unprefixed, torch.float32)
    assert torch.equal(output.hidden, expected.hidden)
