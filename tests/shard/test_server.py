"""What the process of a shard does around its worker. How it serves is in tests/test_contract.py and tests/e2e."""

import gc
from collections.abc import Iterator

import pytest

from shard.server import imported


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_was_imported_is_not_looked_through_again() -> None:
    before = gc.get_freeze_count()
    assert imported("shard.worker").__name__ == "shard.worker"
    assert gc.get_freeze_count() > before
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_at_work() -> None:
    with pytest.raises(ModuleNotFoundError):
        imported("shard.worke")
    assert gc.isenabled()
