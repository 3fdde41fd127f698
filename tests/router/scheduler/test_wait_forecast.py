"""Tests of WaitPredictor in router/scheduler/admission_control.py; its accuracy is tested in tests/test_overload.py."""

import pytest
from support.scheduling.scheduler_simulation import SchedulerSimulation, TrueCosts

from router.request import Request
from router.scheduler.admission_control import WaitPredictor
from router.scheduler.cost_model import SPEED_CHANGE_STREAK, CostModel
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings
from router.scheduler.waiting_queue import QueueDemand

COST_MODEL = CostModel((0.01, 0.0, 0.0001, 0.0))


def make_sequence(number: int, prompt: int, output: int, generated: int = 0) -> Sequence:
    return Sequence(Request(str(number), (7,) * prompt, output), number, 0.0, generated=[7] * generated)


def make_forecast(num_slots: int = 100_000, batch: int = 2) -> WaitPredictor:
    return WaitPredictor(SchedulerSettings(max_batch_size=batch, reserved_block_fraction=0.0), num_slots, COST_MODEL)


def forecast_seconds(wait_forecast: WaitPredictor, waiting: list[Sequence], running: list[Sequence]) -> float:
    demand = QueueDemand(len(waiting), sum(sequence.length for sequence in waiting))
    return wait_forecast.correct_bias(wait_forecast.estimate_raw_wait(waiting, demand, running))


def test_forecast_is_zero_with_free_capacity() -> None:
    assert forecast_seconds(make_forecast(), [], [make_sequence(1, 16, 100)]) == 0.0


def test_full_batch_waits_for_the_next_sequence_to_finish() -> None:
    running = [make_sequence(1, 16, 100, generated=40), make_sequence(2, 16, 100)]
    assert forecast_seconds(make_forecast(), [], running) == pytest.approx(60 * 0.01)


def test_waiting_requests_ahead_go_first() -> None:
    running, waiting = [make_sequence(1, 16, 100, generated=40), make_sequence(2, 16, 100)], [make_sequence(3, 16, 10)]
    assert forecast_seconds(make_forecast(), waiting, running) == pytest.approx(70 * 0.01)


def test_full_cache_waits_for_freed_blocks() -> None:
    running, waiting = [make_sequence(1, 500, 100), make_sequence(2, 300, 50)], [make_sequence(3, 250, 10)]
    assert forecast_seconds(make_forecast(num_slots=1000, batch=9), waiting, running) == pytest.approx(50 * 0.01)


def test_long_prompts_take_their_prefill_time() -> None:
    assert forecast_seconds(make_forecast(), [make_sequence(1, 5000, 1)], []) == pytest.approx(0.5)


def test_forecast_learns_that_outputs_end_early() -> None:
    forecast, running = make_forecast(), [make_sequence(1, 16, 100), make_sequence(2, 16, 100)]
    for _ in range(300):
        forecast.record_output_length(50, 100)
    assert forecast_seconds(forecast, [], running) == pytest.approx(0.5, rel=0.01)


def test_forecast_learns_its_bias_and_variance() -> None:
    forecast, running = make_forecast(), [make_sequence(1, 16, 100), make_sequence(2, 16, 100)]
    for _ in range(300):
        forecast.record_wait(1.0, 1.5)
    assert forecast_seconds(forecast, [], running) == pytest.approx(1.5, rel=0.01)
    assert forecast.upper_bound(1.0) == pytest.approx(1.5, abs=0.02)
    for wait in (0.5, 2.0) * 50:
        forecast.record_wait(1.0, wait)
    assert forecast.upper_bound(1.0) > 2.0


@pytest.mark.parametrize("factor", [10.0, 2.5, 0.1])
def test_speed_change_is_not_counted_twice_after_steps_at_the_new_speed(factor: float) -> None:
    forecast, running = make_forecast(), [make_sequence(1, 16, 100, generated=40), make_sequence(2, 16, 100)]
    for seconds in [0.01] * 20 + [0.01 * factor] * (SPEED_CHANGE_STREAK - 1):
        forecast.record_step(seconds, 0, has_turned_new_sequence_away=False)
    forecast.scale_step_times(factor)
    forecast.record_step(0.01 * factor, 0, has_turned_new_sequence_away=False)
    assert forecast_seconds(forecast, [], running) == pytest.approx(60 * 0.01 * factor)


def test_idle_minutes_are_no_step() -> None:
    """The last answer of a burst may be that to a plan without a step, which only removes finished sequences."""
    def learn_step_seconds(pause_seconds: float) -> float:
        world = SchedulerSimulation(SchedulerSettings(), TrueCosts(0.05, 0.001, 0.001, 1e-6), seed=1, latency=0.001)
        for burst in range(3):
            for number in range(4):
                request = Request(f"{burst}-{number}", (7,) * 64, 20 + number)
                world.add_arrival(request, pause_seconds * burst + 0.001 * number)
        world.run()
        return world.scheduler._wait_forecast._step_seconds
    assert learn_step_seconds(600.0) == pytest.approx(learn_step_seconds(10.0), rel=0.01)


def test_very_long_queue_is_extrapolated_from_its_beginning() -> None:
    running, waiting = [make_sequence(1, 1, 100),
                        make_sequence(2, 1, 100)], [make_sequence(n, 1, 10) for n in range(3, 2003)]
    assert forecast_seconds(make_forecast(), waiting, running) == pytest.approx(2000 * 10 * 0.01 / 2, rel=0.2)
