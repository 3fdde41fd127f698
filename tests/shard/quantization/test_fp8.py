import pytest
from support.quantized_checkpoints import Fp8

from tests.shard.same_model import has_the_same_bits, pair


@pytest.mark.slow
@pytest.mark.parametrize("tool", [Fp8(), Fp8(static=True), Fp8("channel"), Fp8("block")], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_are_those_of_the_numbers(
        tmp_path_factory: pytest.TempPathFactory, tool: Fp8, num_ranks: int) -> None:
    has_the_same_bits(pair(tmp_path_factory, tool), num_ranks)
