"""Tests of the pauses before a dead process is replaced, and of giving up."""

from launcher.supervisor.restart_policy import MOST, PAUSES, WINDOW, Deaths


def pauses(*times: float) -> list[float | None]:
    deaths = Deaths(PAUSES)
    return [deaths.pause(time) for time in times]


def test_pauses_double_and_the_fifth_death_within_five_minutes_is_the_last() -> None:
    assert pauses(0, 10, 20, 30, 40) == [1.0, 2.0, 4.0, 8.0, None]


def test_who_dies_now_and_then_is_replaced_for_ever_after_pauses_of_half_a_minute_at_most() -> None:
    assert pauses(*(WINDOW / (MOST - 1) * number for number in range(9))) == [1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_five_minutes_without_a_death_end_the_row() -> None:
    assert pauses(0, 10, 10 + WINDOW, 20 + WINDOW) == [1.0, 2.0, 1.0, 2.0]


def test_deaths_of_long_ago_do_not_count() -> None:
    assert pauses(0, 1, 2, 250, 301, 302.5)[-2:] == [16.0, 30.0]
