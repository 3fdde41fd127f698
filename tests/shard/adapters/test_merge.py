"""Matrices are merged as by peft's own functions, with the same random draws for the same seed."""

from collections.abc import Callable

import pytest
import torch
from peft.utils import merge_utils as oracle
from support.peft_adapters import unwarned
from torch import Generator, Tensor

from shard.adapters.merge import SIGNS, STRATEGIES, Merging, merged, roots

SEED = 5
ORACLES: dict[str, Callable[[list[Tensor], Tensor, float, str], Tensor]] = {
    "linear": lambda matrices, weights, density, sign: oracle.task_arithmetic(matrices, weights),
    "ties": oracle.ties,
    "dare_linear": lambda matrices, weights, density, sign: oracle.dare_linear(matrices, weights, density),
    "dare_ties": oracle.dare_ties,
}


def drawn(count: int) -> list[Tensor]:
    generator = Generator().manual_seed(count)
    return [torch.randn(6, 40, generator=generator) for _ in range(count)]


def whole_numbers(count: int) -> list[Tensor]:
    """Return matrices in which many values are equal, zero, or cancel out."""
    generator = Generator().manual_seed(count)
    return [torch.randint(-2, 3, (6, 40), generator=generator).float() for _ in range(count)]


def expected(matrices: list[Tensor], weights: list[float], merging: Merging) -> Tensor:
    with torch.random.fork_rng(), unwarned():
        torch.manual_seed(SEED)
        return ORACLES[merging.strategy](matrices, torch.tensor(weights), merging.density, merging.sign)


def ours(matrices: list[Tensor], weights: list[float], merging: Merging) -> Tensor:
    return merged(matrices, weights, merging, Generator().manual_seed(SEED))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("density", [0.001, 0.2, 0.5, 1 / 3, 0.999, 1.0])
@pytest.mark.parametrize("weights", [[0.7, 0.3], [1.0, -0.5, 0.25], [-1.5, 2.0, 0.0, 3.0, 0.1]], ids=len)
@pytest.mark.parametrize("made", [drawn, whole_numbers])
def test_it_is_what_peft_makes_of_them(strategy: str, sign: str, density: float, weights: list[float],
                                       made: Callable[[int], list[Tensor]]) -> None:
    matrices, merging = made(len(weights)), Merging(strategy, density, sign)
    torch.testing.assert_close(ours(matrices, weights, merging), expected(matrices, weights, merging),
                               rtol=1e-6, atol=1e-7)


def test_what_is_merged_stays_as_it_was() -> None:
    for strategy in STRATEGIES:
        matrices = drawn(2)
        ours(matrices, [0.5, 0.5], Merging(strategy, 0.5, "total"))
        assert all(map(torch.equal, matrices, drawn(2)))


def test_what_dare_leaves_is_made_larger_for_what_it_drops() -> None:
    ones = torch.ones(100, 100)
    left = ours([ones, ones], [1.0, 0.0], Merging("dare_linear", 0.25, "total"))
    assert set(left.unique().tolist()) == {0.0, 4.0}
    assert left.mean().item() == pytest.approx(1.0, abs=0.1)


def test_who_is_outvoted_does_not_count() -> None:
    matrices = [torch.tensor([[value]]) for value in (1.0, 2.0, -9.0)]
    assert ours(matrices, [1.0, 1.0, 1.0], Merging("ties", 1.0, "frequency")).item() == 1.5
    assert ours(matrices, [1.0, 1.0, 1.0], Merging("ties", 1.0, "total")).item() == -9.0


@pytest.mark.parametrize("factor", [4.0, -2.25, 0.0, -1e-300])
def test_both_matrices_together_have_the_factor(factor: float) -> None:
    down, up = roots(factor)
    assert down * up == pytest.approx(factor)
    assert up == abs(down)
