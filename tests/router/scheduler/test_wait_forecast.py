"""Tests of router/scheduler/wait_forecast.py; the accuracy of forecasts is tested in tests/test_overload.py."""

import pytest

from router.request import Request
from router.scheduler.cost_model import SURPRISES, CostModel
from router.scheduler.sequence import Sequence
from router.scheduler.settings import Policy
from router.scheduler.wait_forecast import Forecast
from router.scheduler.waiting_queue import Demand

COSTS = CostModel((0.01, 0.0, 0.0001, 0.0))


def sequence(number: int, prompt: int, output: int, generated: int = 0) -> Sequence:
    return Sequence(Request(str(number), (7,) * prompt, output), number, 0.0, generated=[7] * generated)


def forecast(num_places: int = 100_000, batch: int = 2) -> Forecast:
    return Forecast(Policy(max_batch_size=batch, reserve=0.0), num_places, COSTS)


def seconds(made: Forecast, waiting: list[Sequence], running: list[Sequence]) -> float:
    demand = Demand(len(waiting), sum(one.length for one in waiting))
    return made.corrected(made.plain(waiting, demand, running))


def test_with_room_nobody_waits() -> None:
    assert seconds(forecast(), [], [sequence(1, 16, 100)]) == 0.0


def test_a_full_batch_is_waited_for_until_the_next_ends() -> None:
    running = [sequence(1, 16, 100, generated=40), sequence(2, 16, 100)]
    assert seconds(forecast(), [], running) == pytest.approx(60 * 0.01)


def test_who_waits_before_goes_first() -> None:
    running, waiting = [sequence(1, 16, 100, generated=40), sequence(2, 16, 100)], [sequence(3, 16, 10)]
    assert seconds(forecast(), waiting, running) == pytest.approx(70 * 0.01)


def test_a_full_cache_is_waited_for() -> None:
    running, waiting = [sequence(1, 500, 100), sequence(2, 300, 50)], [sequence(3, 250, 10)]
    assert seconds(forecast(num_places=1000, batch=9), waiting, running) == pytest.approx(50 * 0.01)


def test_long_prompts_take_their_time() -> None:
    assert seconds(forecast(), [sequence(1, 5000, 1)], []) == pytest.approx(0.5)


def test_that_answers_end_early_is_learned() -> None:
    one, running = forecast(), [sequence(1, 16, 100), sequence(2, 16, 100)]
    for _ in range(300):
        one.ended(50, 100)
    assert seconds(one, [], running) == pytest.approx(0.5, rel=0.01)


def test_what_was_wrong_with_forecasts_is_learned_and_makes_careful_while_it_varies() -> None:
    one, running = forecast(), [sequence(1, 16, 100), sequence(2, 16, 100)]
    for _ in range(300):
        one.started(1.0, 1.5)
    assert seconds(one, [], running) == pytest.approx(1.5, rel=0.01)
    assert one.at_worst(1.0) == pytest.approx(1.5, abs=0.02)
    for wait in (0.5, 2.0) * 50:
        one.started(1.0, wait)
    assert one.at_worst(1.0) > 2.0


@pytest.mark.parametrize("factor", [10.0, 2.5, 0.1])
def test_a_new_pace_is_not_counted_twice_where_steps_of_it_were_seen(factor: float) -> None:
    one, running = forecast(), [sequence(1, 16, 100, generated=40), sequence(2, 16, 100)]
    for took in [0.01] * 20 + [0.01 * factor] * (SURPRISES - 1):
        one.new_pace(1.0)
        one.step_took(took, 0, crowded=False)
    one.new_pace(factor)
    one.step_took(0.01 * factor, 0, crowded=False)
    assert seconds(one, [], running) == pytest.approx(60 * 0.01 * factor)


def test_a_very_long_queue_is_taken_to_go_on_as_it_begins() -> None:
    running, waiting = [sequence(1, 1, 100), sequence(2, 1, 100)], [sequence(n, 1, 10) for n in range(3, 2003)]
    assert seconds(forecast(), waiting, running) == pytest.approx(2000 * 10 * 0.01 / 2, rel=0.2)
