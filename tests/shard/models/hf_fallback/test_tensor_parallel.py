import pytest
import torch
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks
from torch import Tensor, nn

from shard.models.hf_fallback.tensor_parallel import split_linears

TENSOR_PARALLEL_PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise",
                        "layers.*.norm": "replicated_with_grad_allreduce"}


class SmallLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([SmallLayer(), SmallLayer()])
    return model.requires_grad_(False)


def run_layers(module: nn.Module, x: Tensor) -> Tensor:
    for layer in module.layers:  # type: ignore[union-attr]
        x = layer(x)
    return x


@pytest.mark.parametrize("size", [2, 4])
def test_split_model_gives_the_output_of_the_whole_model(size: int) -> None:
    def split_and_run(group: InProcessRankGroup) -> Tensor:
        module = models[group.rank]
        split_linears(module, TENSOR_PARALLEL_PLAN, group, group.all_reduce_sum)
        return run_layers(module, x)

    x, models = torch.randn(3, 4), [make_model() for _ in range(size)]
    first, *others = run_on_ranks(size, split_and_run)
    torch.testing.assert_close(first, run_layers(make_model(), x))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(("plan", "size", "reason"), [
    ({"layers.*.up": "packed_colwise"}, 2, "split as packed_colwise"),
    ({"layers.*.norm": "colwise"}, 2, "layers.0.norm is a LayerNorm, which cannot be split"),
    ({"layers.*.up": "colwise"}, 3, "8 cannot be shared evenly by 3 shards"),
])
def test_invalid_plan_is_rejected(plan: dict[str, str], size: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_linears(make_model(), plan, InProcessRankGroup(0, size, None), lambda x: x)  # type: ignore[arg-type]
