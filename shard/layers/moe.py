"""Mixture of experts: a gate chooses a few experts for every token, and their weighted outputs are added.

The rows of a step are sorted by expert, so that each expert runs once for all of its tokens. A token's bits do not
depend on the other tokens of an expert: a row's bits in a linear do not depend on other rows, and the experts' outputs
are added in the order of the gate's choice. Each rank has a slice of every expert.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shard.adapters.routing import Bearers
from shard.ops.linear import Linear
from shard.parallel.group import Group


class Router:
    def __init__(self, gate: Linear, num_chosen: int, *, normalised: bool) -> None:
        """`gate` returns a score for every expert. If `normalised`, the shares of the chosen experts sum to 1."""
        self.gate = gate
        self.num_chosen = num_chosen
        self._normalised = normalised

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen experts and their float32 shares, both `[tokens, chosen]`.

        The largest share comes first; of equal shares, the one of the lower expert.
        """
        shares, experts = self.gate(x).float().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        chosen = shares[:, :self.num_chosen]
        if self._normalised:
            chosen = chosen / added(chosen.unsqueeze(-1))
        return experts[:, :self.num_chosen], chosen


class Expert:
    def __init__(self, gated: Linear, down: Linear) -> None:
        """`gated` and `down` hold this rank's slice of the expert."""
        self.gated = gated
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gated(x))


class Experts:
    def __init__(self, router: Router, experts: Sequence[Expert], group: Group, bearers: Bearers | None = None) -> None:
        """`bearers`: the object that the experts' linears read their rows' adapters from; None without adapters."""
        self._bearers = bearers
        self._router = router
        self._experts = experts
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, hidden]` in and out"""
        experts, shares = self._router(x)
        said = self._ask(x, experts.flatten()).view(*experts.shape, -1)  # [tokens, chosen, hidden]
        return self._group.sum(added(said, shares).to(x.dtype))

    def _ask(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the experts' outputs, one row per element of `chosen: [tokens * chosen]`."""
        said = x.new_empty(len(chosen), x.shape[1])
        counts = chosen.bincount(minlength=len(self._experts)).tolist()
        places = torch.split(chosen.argsort(stable=True), counts)
        for expert, mine in zip(self._experts, places, strict=True):
            if len(mine):
                said.index_copy_(0, mine, self._say(expert, x, mine // self._router.num_chosen))
        return said

    def _say(self, expert: Expert, x: Tensor, rows: Tensor) -> Tensor:
        if self._bearers is None:
            return expert(x.index_select(0, rows))
        with self._bearers.chosen(rows):
            return expert(x.index_select(0, rows))


def added(rows: Tensor, shares: Tensor | None = None) -> Tensor:
    """Sum `[tokens, chosen, width]` to `[tokens, width]` in float32, one choice after the other.

    The order in which torch's own sum adds may depend on the number of rows.
    """
    total = torch.zeros(len(rows), rows.shape[2], device=rows.device)
    for place in range(rows.shape[1]):
        row = rows[:, place].float()
        total += row if shares is None else row * shares[:, place, None]
    return total
