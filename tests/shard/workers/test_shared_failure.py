"""A rank that fails in a step of several ranks exits; a single shard continues."""

import pytest

from shard.parallel.group import Alone
from shard.parallel.shared_memory import PeerLost
from shard.workers.shared_failure import together


class Two(Alone):
    rank, size = 0, 2


def fail() -> None:
    raise RuntimeError("out of memory")


def test_what_is_done_is_told() -> None:
    assert together(Two(), lambda: None, lambda: 5) == 5


@pytest.mark.parametrize(("group", "ends"), [(Alone(), 0), (Two(), 1)], ids=["alone", "one of two"])
def test_only_a_group_ends_with_a_failure(group: Alone, ends: int) -> None:
    ended: list[int] = []
    with pytest.raises(RuntimeError, match="out of memory"):
        together(group, lambda: ended.append(1), fail)
    assert len(ended) == ends


@pytest.mark.parametrize(("error", "traced"), [
    (RuntimeError("out of memory"), True), (PeerLost("rank 1 is gone"), False)], ids=["its own", "another's"])
def test_where_a_failure_comes_from_is_told_by_whose_it_is(
        error: Exception, traced: bool, caplog: pytest.LogCaptureFixture) -> None:
    def meet() -> None:
        raise error

    with pytest.raises(type(error)):
        together(Two(), lambda: None, meet)
    [record] = caplog.records
    assert record.getMessage() == f"this shard ends with its group: {error}"
    assert bool(record.exc_info) == traced
