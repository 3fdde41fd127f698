"""Mixture of experts: a gate chooses a few experts for every token, and their weighted outputs are added.

The rows of a step are sorted by expert, so that each expert runs once for all of its tokens. That is exact by
docs/concepts/exactness.md, "Products with independent rows", and since the experts' outputs are added in the order of
the gate's choice, by "Sums in a fixed order". Each rank has a slice of every expert, and the ranks sum once per layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shard.lora.routing import AdapterRouting
from shard.ops.unquantized_linear import Linear
from shard.parallel.group import RankGroup


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """Router of a mixture of experts: chooses experts and their weights for every token."""

    gate_linear: Linear  # returns a score for every expert
    num_experts_per_token: int
    normalize_weights: bool  # whether the shares of the chosen experts sum to 1

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen experts and their float32 shares, both `[tokens, chosen]`.

        The largest share comes first; of equal shares, the one of the lower expert.
        """
        routing_weights, experts = self.gate_linear(x).float().softmax(dim=-1).sort(
            dim=-1, descending=True, stable=True)
        top_weights = routing_weights[:, :self.num_experts_per_token]
        if self.normalize_weights:
            top_weights = top_weights / sum_expert_outputs(top_weights.unsqueeze(-1))
        return experts[:, :self.num_experts_per_token], top_weights


@dataclass(frozen=True, slots=True)
class Expert:
    """One expert, a gated MLP; a rank holds a slice of it."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.gate_up(x))


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """Mixture of experts: the gate, all experts, and the weighted sum of the chosen ones' outputs."""

    expert_gate: ExpertGate
    experts: Sequence[Expert]
    group: RankGroup
    adapter_routing: AdapterRouting | None = None  # where the experts' linears read their rows' adapters from

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, hidden]` in and out"""
        experts, routing_weights = self.expert_gate(x)
        # [tokens, chosen, hidden]
        expert_outputs = self._run_chosen_experts(x, experts.flatten()).view(*experts.shape, -1)
        return self.group.all_reduce_sum(sum_expert_outputs(expert_outputs, routing_weights).to(x.dtype))

    def _run_chosen_experts(self, x: Tensor, chosen_experts: Tensor) -> Tensor:
        """Return the experts' outputs, one row per element of `chosen_experts: [tokens * chosen]`."""
        outputs = x.new_empty(len(chosen_experts), x.shape[1])
        counts = chosen_experts.bincount(minlength=len(self.experts)).tolist()
        output_rows = torch.split(chosen_experts.argsort(stable=True), counts)
        for expert, expert_rows in zip(self.experts, output_rows, strict=True):
            if len(expert_rows):
                outputs.index_copy_(0, expert_rows,
                                    self._run_expert(expert, x, expert_rows // self.expert_gate.num_experts_per_token))
        return outputs

    def _run_expert(self, expert: Expert, x: Tensor, token_rows: Tensor) -> Tensor:
        if self.adapter_routing is None:
            return expert(x.index_select(0, token_rows))
        all_rows = self.adapter_routing.rows
        self.adapter_routing.rows = all_rows.select_rows(token_rows)
        output = expert(x.index_select(0, token_rows))
        self.adapter_routing.rows = all_rows  # for the linears behind the experts
        return output


def sum_expert_outputs(rows: Tensor, routing_weights: Tensor | None = None) -> Tensor:
    """Sum `[tokens, chosen, width]` to `[tokens, width]` in float32, one choice after the other:
    docs/concepts/exactness.md, "Sums in a fixed order"."""
    total = torch.zeros(len(rows), rows.shape[2], device=rows.device)
    for choice in range(rows.shape[1]):
        row = rows[:, choice].float()
        total += row if routing_weights is None else row * routing_weights[:, choice, None]
    return total
