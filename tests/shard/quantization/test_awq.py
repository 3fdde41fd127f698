import pytest
from support.checkpoints.dequantized_checkpoints import (
    check_logits_are_close,
    check_logits_are_identical,
    make_checkpoint_pair,
)
from support.checkpoints.quantized_checkpoints import AwqTool


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [16, 32])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, group_size: int, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, AwqTool(group_size)), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_weights_kept_as_int8_are_close_to_dequantized_ones(
        tmp_path_factory: pytest.TempPathFactory, num_ranks: int) -> None:
    check_logits_are_close(make_checkpoint_pair(tmp_path_factory, AwqTool(-1)), num_ranks)
