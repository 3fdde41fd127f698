"""Tensor-parallel split of a foreign module by its tensor-parallel plan: colwise linears are split by outputs, rowwise
ones by inputs, with results summed over the ranks."""

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from shard.models.hf_fallback.model import bias_of
from shard.parallel.group import Group, share

Total = Callable[[Tensor], Tensor]
WHOLE = "replicated_with_grad_allreduce"  # replicated on every rank


class Summed(nn.Module):
    def __init__(self, linear: nn.Linear, total: Total) -> None:
        super().__init__()
        self.linear = linear
        self._total = total

    def forward(self, x: Tensor) -> Tensor:
        return self._total(self.linear(x))


def by_outputs(linear: nn.Linear, group: Group, _: Total) -> nn.Module:
    mine = share(linear.out_features, group.rank, group.size)
    rows = slice(mine.start, mine.stop)
    bias = bias_of(linear)
    return smaller(linear.weight[rows], None if bias is None else bias[rows])


def by_inputs(linear: nn.Linear, group: Group, total: Total) -> nn.Module:
    """Split by inputs. Only rank 0 keeps the bias, so that it is added once."""
    mine = share(linear.in_features, group.rank, group.size)
    return Summed(smaller(linear.weight[:, mine.start:mine.stop], None if group.rank else bias_of(linear)), total)


SPLITS = {"colwise": by_outputs, "rowwise": by_inputs}


def smaller(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear with copies of `weight` and `bias`, so that the tensors they are slices of can be freed."""
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, device=torch.device("meta"))
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def share_products(module: nn.Module, plan: Mapping[str, str], group: Group, total: Total) -> None:
    """Split the module's linears in place. Raises ValueError if the plan is not supported.

    `plan`: split style by module name, where a star matches any number. `total` sums over the ranks.
    """
    if unknown := sorted(set(plan.values()) - SPLITS.keys() - {WHOLE}):
        raise ValueError(f"it would have to be split as {', '.join(unknown)}")
    splits = [(re.compile(re.escape(name).replace(r"\*", r"\d+")), SPLITS[style])
              for name, style in plan.items() if style != WHOLE]
    for name, product in list(module.named_modules()):
        split = next((split for pattern, split in splits if pattern.fullmatch(name)), None)
        if split is None:
            continue
        if type(product) is not nn.Linear:
            raise ValueError(f"{name} is a {type(product).__name__}, which cannot be split")
        module.set_submodule(name, split(product, group, total))
