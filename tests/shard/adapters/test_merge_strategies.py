"""Matrices are merged as by peft's own functions, with the same random draws for the same seed."""

from collections.abc import Callable

import pytest
import torch
from peft.utils import merge_utils as oracle
from support.checkpoints.peft_adapters import suppress_peft_warnings
from torch import Generator, Tensor

from shard.adapters.merge_strategies import MERGE_STRATEGIES, SIGN_METHODS, MergeSettings, merge_matrices, split_factor

SEED = 5
PEFT_MERGE_FUNCTIONS: dict[str, Callable[[list[Tensor], Tensor, float, str], Tensor]] = {
    "linear": lambda matrices, weights, density, sign: oracle.task_arithmetic(matrices, weights),
    "ties": oracle.ties,
    "dare_linear": lambda matrices, weights, density, sign: oracle.dare_linear(matrices, weights, density),
    "dare_ties": oracle.dare_ties,
}


def make_random_matrices(count: int) -> list[Tensor]:
    generator = Generator().manual_seed(count)
    return [torch.randn(6, 40, generator=generator) for _ in range(count)]


def make_integer_matrices(count: int) -> list[Tensor]:
    """Return matrices in which many values are equal, zero, or cancel out."""
    generator = Generator().manual_seed(count)
    return [torch.randint(-2, 3, (6, 40), generator=generator).float() for _ in range(count)]


def merge_with_peft(matrices: list[Tensor], weights: list[float], merge_settings: MergeSettings) -> Tensor:
    with torch.random.fork_rng(), suppress_peft_warnings():
        torch.manual_seed(SEED)
        return PEFT_MERGE_FUNCTIONS[merge_settings.strategy](matrices, torch.tensor(weights), merge_settings.density,
                                                             merge_settings.sign_method)


def merge_with_shard(matrices: list[Tensor], weights: list[float], merge_settings: MergeSettings) -> Tensor:
    return merge_matrices(matrices, weights, merge_settings, Generator().manual_seed(SEED))


@pytest.mark.parametrize("strategy", MERGE_STRATEGIES)
@pytest.mark.parametrize("sign", SIGN_METHODS)
@pytest.mark.parametrize("density", [0.001, 0.2, 0.5, 1 / 3, 0.999, 1.0])
@pytest.mark.parametrize("weights", [[0.7, 0.3], [1.0, -0.5, 0.25], [-1.5, 2.0, 0.0, 3.0, 0.1]], ids=len)
@pytest.mark.parametrize("made", [make_random_matrices, make_integer_matrices])
def test_merged_matrices_match_peft(strategy: str, sign: str, density: float, weights: list[float],
                                    made: Callable[[int], list[Tensor]]) -> None:
    matrices, merge_settings = made(len(weights)), MergeSettings(strategy, density, sign)
    torch.testing.assert_close(merge_with_shard(matrices, weights, merge_settings),
                               merge_with_peft(matrices, weights, merge_settings), rtol=1e-6, atol=1e-7)


def test_merging_does_not_change_its_inputs() -> None:
    for strategy in MERGE_STRATEGIES:
        matrices = make_random_matrices(2)
        merge_with_shard(matrices, [0.5, 0.5], MergeSettings(strategy, 0.5, "total"))
        assert all(map(torch.equal, matrices, make_random_matrices(2)))


def test_dare_scales_kept_values_up_for_dropped_ones() -> None:
    ones = torch.ones(100, 100)
    merged_matrix = merge_with_shard([ones, ones], [1.0, 0.0], MergeSettings("dare_linear", 0.25, "total"))
    assert set(merged_matrix.unique().tolist()) == {0.0, 4.0}
    assert merged_matrix.mean().item() == pytest.approx(1.0, abs=0.1)


def test_ties_ignores_values_of_the_minority_sign() -> None:
    matrices = [torch.tensor([[value]]) for value in (1.0, 2.0, -9.0)]
    assert merge_with_shard(matrices, [1.0, 1.0, 1.0], MergeSettings("ties", 1.0, "frequency")).item() == 1.5
    assert merge_with_shard(matrices, [1.0, 1.0, 1.0], MergeSettings("ties", 1.0, "total")).item() == -9.0


@pytest.mark.parametrize("factor", [4.0, -2.25, 0.0, -1e-300])
def test_roots_multiply_to_the_factor(factor: float) -> None:
    down, up = split_factor(factor)
    assert down * up == pytest.approx(factor)
    assert up == abs(down)
