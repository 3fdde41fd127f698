"""Muon optimizer: the momentum of a matrix is orthogonalised before the step, which learns faster than Adam.

Like torch.optim.Muon, but in float32, since bfloat16 products take a hundred times longer on a CPU without units for
them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM, WEIGHT_DECAY = 0.95, 0.1
NEWTON_SCHULZ_COEFFICIENTS, NEWTON_SCHULZ_STEPS = (3.4445, -4.7750, 2.0315), 5
ADAM_UPDATE_SIZE = 0.2  # the usual size of an element of Adam's update


class Muon(torch.optim.Optimizer):
    """Muon optimizer for weight matrices, in float32."""

    def __init__(self, weights: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            for weight in group["params"]:
                self._update_weight(weight, group["lr"])

    def _update_weight(self, weight: nn.Parameter, learning_rate: float) -> None:
        gradient, state = weight.grad, self.state[weight]
        assert gradient is not None
        momentum = state.setdefault("momentum", torch.zeros_like(gradient))
        momentum.lerp_(gradient, 1 - MOMENTUM)
        weight.mul_(1 - learning_rate * WEIGHT_DECAY)
        size = ADAM_UPDATE_SIZE * max(weight.shape) ** 0.5
        weight.add_(orthogonalize(gradient.lerp(momentum, MOMENTUM)), alpha=-learning_rate * size)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return approximately the nearest matrix with equal singular values, by Newton-Schulz iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
