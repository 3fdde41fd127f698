"""Tensor-parallel split of a foreign module by its tensor-parallel plan: colwise linears are split by outputs, rowwise
ones by inputs, with results summed over the ranks."""

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import get_bias_tensor
from shard.parallel.group import RankGroup, even_rank_range

RankSum = Callable[[Tensor], Tensor]
REPLICATED_STYLE = "replicated_with_grad_allreduce"  # replicated on every rank


class RankSummedLinear(nn.Module):
    """Linear over this rank's slice of the inputs, whose results are summed over the ranks."""

    def __init__(self, linear: nn.Linear, sum_over_ranks: RankSum) -> None:
        super().__init__()
        self.linear = linear
        self._sum_over_ranks = sum_over_ranks

    def forward(self, x: Tensor) -> Tensor:
        return self._sum_over_ranks(self.linear(x))


def split_linear_by_outputs(linear: nn.Linear, group: RankGroup, _: RankSum) -> nn.Module:
    rank_range = even_rank_range(linear.out_features, group.rank, group.size)
    rows = slice(rank_range.start, rank_range.stop)
    bias = get_bias_tensor(linear)
    return make_linear_copy(linear.weight[rows], None if bias is None else bias[rows])


def split_linear_by_inputs(linear: nn.Linear, group: RankGroup, sum_over_ranks: RankSum) -> nn.Module:
    """Split by inputs. Only rank 0 keeps the bias, so that it is added once."""
    rank_range = even_rank_range(linear.in_features, group.rank, group.size)
    return RankSummedLinear(
        make_linear_copy(linear.weight[:, rank_range.start:rank_range.stop],
                         None if group.rank else get_bias_tensor(linear)), sum_over_ranks)


SPLIT_FUNCTIONS = {"colwise": split_linear_by_outputs, "rowwise": split_linear_by_inputs}


def make_linear_copy(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear with copies of `weight` and `bias`, so that the tensors they are slices of can be freed."""
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, device=torch.device("meta"))
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def split_linears(module: nn.Module, tensor_parallel_plan: Mapping[str, str], group: RankGroup,
                  sum_over_ranks: RankSum) -> None:
    """Split the module's linears in place. Raises ValueError if the plan is not supported.

    `tensor_parallel_plan`: split style by module name, where a star matches any number. `sum_over_ranks` sums over the
    ranks.
    """
    if unknown := sorted(set(tensor_parallel_plan.values()) - SPLIT_FUNCTIONS.keys() - {REPLICATED_STYLE}):
        raise ValueError(f"it would have to be split as {', '.join(unknown)}")
    splits = [(re.compile(re.escape(name).replace(r"\*", r"\d+")), SPLIT_FUNCTIONS[style])
              for name, style in tensor_parallel_plan.items() if style != REPLICATED_STYLE]
    for name, linear in list(module.named_modules()):
        split = next((split for pattern, split in splits if pattern.fullmatch(name)), None)
        if split is None:
            continue
        if type(linear) is not nn.Linear:
            raise ValueError(f"{name} is a {type(linear).__name__}, which cannot be split")
        module.set_submodule(name, split(linear, group, sum_over_ranks))
