"""Every delta is added to the residual once and in order, whichever method is called next."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.ops.norm import RMSNorm
from shard.ops.residual import Residual


@given(st.lists(st.sampled_from(["add", "norm", "look"]), max_size=12), st.integers(0, 99))
def test_a_norm_adds_what_was_yet_to_be_added(steps: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    norm, x = RMSNorm(torch.rand(8), 1e-5), torch.randn(3, 8).bfloat16()
    residual, expected = Residual(x), x.clone()
    for step in steps:
        match step:
            case "add":
                delta = torch.randn(3, 8).bfloat16()
                residual.add(delta)
                expected += delta
            case "norm":
                assert torch.equal(residual.normed(norm), norm(expected))
            case _:
                assert torch.equal(residual.whole(), expected)
    assert torch.equal(residual.whole(), expected)
    assert residual.whole() is x


def test_what_a_norm_adds_nobody_adds_again() -> None:
    added: list[torch.Tensor] = []

    class Noting(RMSNorm):
        def after(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
            added.append(delta)
            return super().after(x, delta)

    residual, norm, delta = Residual(torch.ones(1, 4)), Noting(torch.ones(4), 1e-5), torch.full((1, 4), 2.0)
    residual.normed(norm)
    residual.add(delta)
    residual.normed(norm)
    residual.normed(norm)
    assert len(added) == 1
    assert residual.whole().tolist() == [[3.0] * 4]
