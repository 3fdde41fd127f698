"""Fixtures of the tests of sampling."""

from collections.abc import Iterator

import pytest
import torch

from shard.native.library import load_library
from shard.sampling import normalized_logits


@pytest.fixture(params=["kernels", "torch"])
def kernels_or_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice, with kernels, if there are some, and without."""
    if request.param == "torch":
        monkeypatch.setattr(normalized_logits, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("there are no compiled kernels")


@pytest.fixture(params=[1, 2])
def num_torch_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
