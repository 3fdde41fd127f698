import pytest
from support.quantized_checkpoints import Awq

from tests.shard.same_model import agrees_closely, has_the_same_bits, pair


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [16, 32])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_are_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, group_size: int, num_ranks: int) -> None:
    has_the_same_bits(pair(tmp_path_factory, Awq(group_size)), num_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_of_kept_codes_are_close_to_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, num_ranks: int) -> None:
    agrees_closely(pair(tmp_path_factory, Awq(-1)), num_ranks)
