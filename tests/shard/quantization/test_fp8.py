import pytest
from support.checkpoints.dequantized_checkpoints import check_logits_are_identical, make_checkpoint_pair
from support.checkpoints.quantized_checkpoints import Fp8Tool


@pytest.mark.slow
@pytest.mark.parametrize("tool", [Fp8Tool(), Fp8Tool(has_static_activations=True), Fp8Tool("channel"),
                                  Fp8Tool("block")], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_logits_match_dequantized_weights(
        tmp_path_factory: pytest.TempPathFactory, tool: Fp8Tool, num_ranks: int) -> None:
    check_logits_are_identical(make_checkpoint_pair(tmp_path_factory, tool), num_ranks)
