"""Fixtures of the tests of the shard."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 2])
def num_torch_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
