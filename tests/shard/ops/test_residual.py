"""Every delta is added to the residual once and in order, whichever method is called next."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shard.ops.norm import RMSNorm
from shard.ops.residual import ResidualStream


@given(st.lists(st.sampled_from(["add", "norm", "look"]), max_size=12), st.integers(0, 99))
def test_norm_adds_pending_deltas_first(steps: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    norm, x = RMSNorm(torch.rand(8), 1e-5), torch.randn(3, 8).bfloat16()
    residual, expected = ResidualStream(x), x.clone()
    for step in steps:
        match step:
            case "add":
                delta = torch.randn(3, 8).bfloat16()
                residual.add_deferred(delta)
                expected += delta
            case "norm":
                assert torch.equal(residual.apply_pending_and_norm(norm), norm(expected))
            case _:
                assert torch.equal(residual.apply_pending(), expected)
    assert torch.equal(residual.apply_pending(), expected)
    assert residual.apply_pending() is x


def test_delta_added_by_a_norm_is_not_added_again() -> None:
    added_deltas: list[torch.Tensor] = []

    class RecordingNorm(RMSNorm):
        def add_and_norm(self, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
            added_deltas.append(delta)
            return super().add_and_norm(x, delta)

    residual, norm, delta = (ResidualStream(torch.ones(1, 4)), RecordingNorm(torch.ones(4), 1e-5),
                             torch.full((1, 4), 2.0))
    residual.apply_pending_and_norm(norm)
    residual.add_deferred(delta)
    residual.apply_pending_and_norm(norm)
    residual.apply_pending_and_norm(norm)
    assert len(added_deltas) == 1
    assert residual.apply_pending().tolist() == [[3.0] * 4]
