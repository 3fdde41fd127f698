"""Tests of repeating a benchmark's turns until one is undisturbed."""

import pytest

from benchmarks.harness import cpu_steal_retry


class FakeMachineClock:
    """Clock of a machine with two processors, on which a turn takes one second."""

    def __init__(self) -> None:
        self.now = self.stolen = 0.0

    def run_attempts(self, retry: cpu_steal_retry.CpuStealRetry[int], shares: list[float]) -> int:
        """Return the number of turns run; each loses the next of `shares` to steal time and results in its number."""
        for number, share in enumerate(shares):
            if not retry.begin_next_attempt():
                return number
            self.now += 1.0
            self.stolen += 2 * share
            retry.end_attempt(number)
        return len(shares)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeMachineClock:
    clock = FakeMachineClock()
    monkeypatch.setattr(cpu_steal_retry.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(cpu_steal_retry, "read_steal_seconds", lambda: clock.stolen)
    monkeypatch.setattr(cpu_steal_retry.os, "cpu_count", lambda: 2)
    return clock


def test_disturbed_attempt_is_repeated(clock: FakeMachineClock) -> None:
    retry = cpu_steal_retry.CpuStealRetry[int](0.05)
    assert clock.run_attempts(retry, [0.3, 0.5, 0.02, 0.01]) == 3
    assert (retry.best_attempt.result, round(retry.best_attempt.steal_share, 3)) == (2, 0.02)


def test_least_disturbed_attempt_counts_if_none_is_quiet(clock: FakeMachineClock) -> None:
    retry = cpu_steal_retry.CpuStealRetry[int](0.05, 20)
    assert clock.run_attempts(retry, [0.3] * 7 + [0.2] + [0.4] * 30) == 20
    assert (retry.best_attempt.result, round(retry.best_attempt.steal_share, 3)) == (7, 0.2)


def test_steal_time_between_attempts_does_not_count(clock: FakeMachineClock) -> None:
    retry = cpu_steal_retry.CpuStealRetry[int](0.05)
    assert clock.run_attempts(retry, [0.3]) == 1
    clock.now, clock.stolen = clock.now + 9.0, clock.stolen + 9.0
    assert clock.run_attempts(retry, [0.0, 0.0]) == 1
    assert retry.best_attempt.steal_share == 0.0


def test_steal_time_is_read_from_linux() -> None:
    assert 0 <= cpu_steal_retry.read_steal_seconds() < 1e9
