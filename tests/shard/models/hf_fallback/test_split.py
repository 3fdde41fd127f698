import pytest
import torch
from torch import Tensor, nn

from shard.models.hf_fallback.split import share_products
from tests.shard.side_by_side import Neighbour, side_by_side

PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "layers.*.norm": "replicated_with_grad_allreduce"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)))


def model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([Layer(), Layer()])
    return model.requires_grad_(False)


def run(module: nn.Module, x: Tensor) -> Tensor:
    for layer in module.layers:  # type: ignore[union-attr]
        x = layer(x)
    return x


@pytest.mark.parametrize("size", [2, 4])
def test_what_is_split_adds_up(size: int) -> None:
    def shared(group: Neighbour) -> Tensor:
        module = models[group.rank]
        share_products(module, PLAN, group, group.sum)
        return run(module, x)

    x, models = torch.randn(3, 4), [model() for _ in range(size)]
    first, *others = side_by_side(size, shared)
    torch.testing.assert_close(first, run(model(), x))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(("plan", "size", "reason"), [
    ({"layers.*.up": "packed_colwise"}, 2, "split as packed_colwise"),
    ({"layers.*.norm": "colwise"}, 2, "layers.0.norm is a LayerNorm, which cannot be split"),
    ({"layers.*.up": "colwise"}, 3, "8 cannot be shared evenly by 3 shards"),
])
def test_a_plan_that_will_not_do_is_refused(plan: dict[str, str], size: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        share_products(model(), plan, Neighbour(0, size, None), lambda x: x)  # type: ignore[arg-type]
