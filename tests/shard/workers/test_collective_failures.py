"""A rank that fails in a step of several ranks exits; a single shard continues."""

import pytest

from shard.parallel.group import SingleRankGroup
from shard.parallel.shared_memory import PeerLost
from shard.workers.collective_failures import run_collective


class TwoRankGroup(SingleRankGroup):
    rank, size = 0, 2


def raise_out_of_memory() -> None:
    raise RuntimeError("out of memory")


def test_result_is_returned() -> None:
    assert run_collective(TwoRankGroup(), lambda: None, lambda: 5) == 5


@pytest.mark.parametrize(("group", "ends"), [(SingleRankGroup(), 0), (TwoRankGroup(), 1)], ids=["alone", "one of two"])
def test_failure_ends_the_process_only_in_a_group(group: SingleRankGroup, ends: int) -> None:
    exits: list[int] = []
    with pytest.raises(RuntimeError, match="out of memory"):
        run_collective(group, lambda: exits.append(1), raise_out_of_memory)
    assert len(exits) == ends


@pytest.mark.parametrize(("error", "traced"), [
    (RuntimeError("out of memory"), True), (PeerLost("rank 1 is gone"), False)], ids=["its own", "another's"])
def test_only_own_failures_are_logged_with_a_traceback(
        error: Exception, traced: bool, caplog: pytest.LogCaptureFixture) -> None:
    def raise_error() -> None:
        raise error

    with pytest.raises(type(error)):
        run_collective(TwoRankGroup(), lambda: None, raise_error)
    [record] = caplog.records
    assert record.getMessage() == f"this shard ends with its group: {error}"
    assert bool(record.exc_info) == traced
