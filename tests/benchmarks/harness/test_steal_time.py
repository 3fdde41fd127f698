"""Tests of repeating a benchmark's turns until one is undisturbed."""

import pytest

from benchmarks.harness import steal_time


class Clock:
    """Clock of a machine with two processors, on which a turn takes one second."""

    def __init__(self) -> None:
        self.now = self.stolen = 0.0

    def tried(self, tries: steal_time.Tries[int], shares: list[float]) -> int:
        """Return the number of turns run; each loses the next of `shares` to steal time and results in its number."""
        for number, share in enumerate(shares):
            if not tries.again():
                return number
            self.now += 1.0
            self.stolen += 2 * share
            tries.ended(number)
        return len(shares)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steal_time.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(steal_time, "stolen_seconds", lambda: clock.stolen)
    monkeypatch.setattr(steal_time.os, "cpu_count", lambda: 2)
    return clock


def test_a_turn_that_was_disturbed_is_tried_again(clock: Clock) -> None:
    tries = steal_time.Tries[int](0.05)
    assert clock.tried(tries, [0.3, 0.5, 0.02, 0.01]) == 3
    assert (tries.best.heard, round(tries.best.stolen, 3)) == (2, 0.02)


def test_where_it_never_is_quiet_the_least_disturbed_turn_counts(clock: Clock) -> None:
    tries = steal_time.Tries[int](0.05, 20)
    assert clock.tried(tries, [0.3] * 7 + [0.2] + [0.4] * 30) == 20
    assert (tries.best.heard, round(tries.best.stolen, 3)) == (7, 0.2)


def test_what_is_stolen_between_turns_does_not_count(clock: Clock) -> None:
    tries = steal_time.Tries[int](0.05)
    assert clock.tried(tries, [0.3]) == 1
    clock.now, clock.stolen = clock.now + 9.0, clock.stolen + 9.0
    assert clock.tried(tries, [0.0, 0.0]) == 1
    assert tries.best.stolen == 0.0


def test_what_linux_says_is_read() -> None:
    assert 0 <= steal_time.stolen_seconds() < 1e9
