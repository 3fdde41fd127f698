import pytest
import torch
from torch import nn

from launcher.demo.training.muon import Muon, orthogonalize


@pytest.mark.parametrize("shape", [(16, 16), (16, 48), (48, 16)])
def test_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    singular_values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert singular_values.min() > 0.5
    assert singular_values.max() < 1.5


def test_steps_match_those_of_torch_muon() -> None:
    torch.manual_seed(1)
    own_weight, torch_weight = (nn.Parameter(torch.ones(16, 32)) for _ in range(2))
    optimizers = [Muon([own_weight], 1e-2),
                  torch.optim.Muon([torch_weight], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")]
    for _ in range(3):
        gradient = torch.randn(16, 32)
        for weight, optimizer in zip((own_weight, torch_weight), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(own_weight, torch_weight, rtol=1e-2, atol=1e-3)
