import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import check_decoder_matches_transformers


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_and_logits_match_transformers(
        tmp_path_factory: pytest.TempPathFactory, tied: bool, num_ranks: int, dtype: torch.dtype) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", dtype="bfloat16", tie_word_embeddings=tied)
    check_decoder_matches_transformers(folder, dtype, num_ranks)
