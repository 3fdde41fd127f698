"""What `make gpu-check` runs on a machine with a GPU. Without one the same tests run on CPU when they are asked for
(`pytest -m gpu tests/gpu`), so that they can be kept right."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """CUDA opens files and starts threads when it likes, and keeps them: nothing is counted here."""
