"""Fixtures of the tests of sampling."""

import pytest

from shard.native.library import load_library
from shard.sampling import logits_with_normalizers


@pytest.fixture(params=["kernels", "torch"])
def kernels_or_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice, with kernels, if there are some, and without."""
    if request.param == "torch":
        monkeypatch.setattr(logits_with_normalizers, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("there are no compiled kernels")
