"""Fixtures of the tests that `make gpu-check` runs on a machine with a GPU.

Without a GPU, `pytest -m gpu tests/gpu` runs the same tests on the CPU, so that they can be kept correct.
"""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE
