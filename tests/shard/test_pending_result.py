import pytest

from shard.pending_result import PendingResult


def do_nothing() -> None: ...


def test_result_is_computed_once_and_returned_each_time() -> None:
    calls: list[int] = []
    pending_result = PendingResult(do_nothing, lambda: calls.append(1) or "said")
    assert [pending_result.finish(), pending_result.finish(), pending_result.future.result()] == ["said"] * 3
    assert calls == [1]


def test_failure_occurs_once_and_is_raised_each_time() -> None:
    calls: list[int] = []

    def fail_and_count() -> None:
        calls.append(1)
        raise ValueError("no end")

    pending_result = PendingResult(do_nothing, fail_and_count)
    pending_result.finish_without_raising()
    for _ in range(2):
        with pytest.raises(ValueError, match="no end"):
            pending_result.finish()
    assert calls == [1]
