import pytest

from shard.deferred import Later


def nothing() -> None: ...


def test_what_it_ends_with_is_said_each_time() -> None:
    calls: list[int] = []
    later = Later(nothing, lambda: calls.append(1) or "said")
    assert [later.finish(), later.finish(), later.answer.result()] == ["said"] * 3
    assert calls == [1]


def test_so_is_what_kept_it_from_an_end() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("no end")

    later = Later(nothing, fail)
    later.settle()
    for _ in range(2):
        with pytest.raises(ValueError, match="no end"):
            later.finish()
    assert calls == [1]
