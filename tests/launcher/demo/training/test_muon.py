import pytest
import torch
from torch import nn

from launcher.demo.training.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    made = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert made.min() > 0.5
    assert made.max() < 1.5


def test_steps_match_those_of_torch_muon() -> None:
    torch.manual_seed(1)
    ours, theirs = (nn.Parameter(torch.ones(16, 32)) for _ in range(2))
    optimizers = [Muon([ours], 1e-2),
                  torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")]
    for _ in range(3):
        gradient = torch.randn(16, 32)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
