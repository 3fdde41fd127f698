"""Step times of a recording, learned and replayed."""

import pytest

from router.scheduler.cost_model import CostModel, Load
from router.simulation.timing import Luck, Pace, Timing

COSTS = (0.01, 0.0, 0.001, 0.0)
DECODE, PROMPT = Load(1, 0, 1), Load(1, 10, 10)
SHORT = (False, -7)  # steps of ten milliseconds without prompts


def learned(*steps, ahead):
    """Learn from steps, pairs of load and seconds; with `ahead`, each is planned before the last one is answered."""
    timing, now = Timing(), 0.0
    for index, (load, seconds) in enumerate(steps):
        if not ahead or not index:
            timing.planned(load, now)
        if ahead and index + 1 < len(steps):
            timing.planned(steps[index + 1][0], now)
        now += seconds + 0.003
        timing.answered(seconds, now)
    return timing.pace(CostModel(COSTS))


def test_luck_is_actual_over_predicted_apart_for_prompts():
    pace = learned((DECODE, 0.02), (PROMPT, 0.03), (DECODE, 0.01), ahead=False)
    assert pace.luck == {SHORT: [pytest.approx(2.0), pytest.approx(1.0)], (True, -6): [pytest.approx(1.5)]}


def test_long_steps_do_not_have_the_luck_of_short_ones():
    """A hiccup of 50 ms makes a short step six times as long, and is hardly seen in a long one."""
    long_step = Load(1, 630, 10)
    steps = [(DECODE, 0.06), (long_step, 0.69)] * 20
    luck = Luck(learned(*steps, ahead=False), seed=3)
    assert luck.seconds(DECODE) == pytest.approx(0.06)
    assert luck.seconds(long_step) == pytest.approx(0.69)


def test_steps_of_a_rare_kind_have_the_luck_of_those_next_to_them():
    luck = Luck(Pace(COSTS, {SHORT: [2.0] * 20, (False, -3): [9.0], (False, 0): [1.0] * 20}), seed=0)
    assert luck.seconds(Load(1, 70, 1)) == pytest.approx(0.16)  # its own kind was seen once, which is too few
    assert luck.seconds(Load(1, 1000, 1)) == pytest.approx(1.01)


def test_what_passes_beside_steps_is_learned_apart_for_those_sent_ahead():
    assert learned((DECODE, 0.02), (DECODE, 0.02), ahead=False).alone == [pytest.approx(0.003)] * 2
    pace = learned((DECODE, 0.02), (DECODE, 0.02), (DECODE, 0.02), ahead=True)
    assert pace.alone == [pytest.approx(0.003)]
    assert pace.between == [pytest.approx(0.003)] * 2


def test_answers_to_steps_that_nobody_saw_teach_nothing():
    timing = Timing()
    timing.answered(0.5, 1.0)
    timing.planned(DECODE, 1.0)
    timing.lost()
    timing.answered(0.5, 2.0)
    assert timing.pace(CostModel(COSTS)) == Pace(COSTS)


def test_luck_is_played_in_its_order_and_again():
    luck = Luck(Pace(COSTS, {SHORT: [1.0, 2.0, 3.0]}), seed=0)
    played = [round(luck.seconds(DECODE) / 0.01) for _ in range(6)]
    assert played[:3] == played[3:]
    assert "".join(map(str, played)) in "123123123"


def test_the_seed_chooses_where_luck_begins():
    pace = Pace(COSTS, {SHORT: [float(number) for number in range(1, 1000)]})
    assert Luck(pace, 1).seconds(DECODE) == Luck(pace, 1).seconds(DECODE) != Luck(pace, 2).seconds(DECODE)


def test_a_step_sent_ahead_is_answered_after_the_one_before():
    luck = Luck(Pace(COSTS, alone=[0.005], between=[0.001]), seed=0)
    assert luck.answered(1.0, None, 0.02) == pytest.approx(1.025)
    assert luck.answered(1.0, 1.5, 0.02) == pytest.approx(1.521)
    assert luck.answered(1.6, 1.5, 0.02) == pytest.approx(1.625)
