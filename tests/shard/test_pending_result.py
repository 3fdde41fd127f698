"""Tests of shard/pending_result.py."""

import gc
import weakref

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


def test_finished_result_is_freed_although_its_function_refers_to_it() -> None:
    """Otherwise every overlapped decode step would wait for the garbage collector."""
    class Step:
        pending_result: PendingResult[int]

    step = Step()
    step.pending_result = PendingResult(do_nothing, lambda held=step: id(held))
    reference = weakref.ref(step)
    gc.disable()
    try:
        step.pending_result.finish()
        del step
        assert reference() is None
    finally:
        gc.enable()
