"""Step times of a recording, learned and replayed."""

import pytest

from router.scheduler.cost_model import CostModel, StepLoad
from router.simulation.timing_profile import TimingCollector, TimingProfile, TimingReplay

COEFFICIENTS = (0.01, 0.0, 0.001, 0.0)
DECODE_LOAD, PROMPT_LOAD = StepLoad(1, 0, 1), StepLoad(1, 10, 10)
SHORT_STEP_KIND = (False, -7)  # steps of ten milliseconds without prompts


def learn_profile(*steps, ahead):
    """Learn from steps, pairs of load and seconds; with `ahead`, each is planned before the last one is answered."""
    timing, now = TimingCollector(), 0.0
    for index, (load, seconds) in enumerate(steps):
        if not ahead or not index:
            timing.record_plan(load, now)
        if ahead and index + 1 < len(steps):
            timing.record_plan(steps[index + 1][0], now)
        now += seconds + 0.003
        timing.record_answered_step(seconds, now)
    return timing.make_profile(CostModel(COEFFICIENTS))


def test_noise_is_actual_over_predicted_time_separately_for_prompts():
    profile = learn_profile((DECODE_LOAD, 0.02), (PROMPT_LOAD, 0.03), (DECODE_LOAD, 0.01), ahead=False)
    assert profile.noise == {SHORT_STEP_KIND: [pytest.approx(2.0), pytest.approx(1.0)],
                             (True, -6): [pytest.approx(1.5)]}


def test_long_steps_do_not_share_the_noise_of_short_ones():
    """A hiccup of 50 ms makes a short step six times as long, and is hardly seen in a long one."""
    long_step = StepLoad(1, 630, 10)
    steps = [(DECODE_LOAD, 0.06), (long_step, 0.69)] * 20
    noise_replay = TimingReplay(learn_profile(*steps, ahead=False), seed=3)
    assert noise_replay.step_seconds(DECODE_LOAD) == pytest.approx(0.06)
    assert noise_replay.step_seconds(long_step) == pytest.approx(0.69)


def test_rare_step_kind_uses_the_noise_of_similar_kinds():
    noise_replay = TimingReplay(TimingProfile(COEFFICIENTS, {SHORT_STEP_KIND: [2.0] * 20, (False, -3): [9.0],
                                                             (False, 0): [1.0] * 20}), seed=0)
    # its own kind was seen once, which is too few
    assert noise_replay.step_seconds(StepLoad(1, 70, 1)) == pytest.approx(0.16)
    assert noise_replay.step_seconds(StepLoad(1, 1000, 1)) == pytest.approx(1.01)


def test_overhead_is_learned_separately_for_steps_sent_ahead():
    assert learn_profile((DECODE_LOAD, 0.02), (DECODE_LOAD, 0.02),
                         ahead=False).idle_overheads == [pytest.approx(0.003)] * 2
    profile = learn_profile((DECODE_LOAD, 0.02), (DECODE_LOAD, 0.02), (DECODE_LOAD, 0.02), ahead=True)
    assert profile.idle_overheads == [pytest.approx(0.003)]
    assert profile.pipelined_overheads == [pytest.approx(0.003)] * 2


def test_answers_to_unknown_steps_are_ignored():
    timing = TimingCollector()
    timing.record_answered_step(0.5, 1.0)
    timing.record_plan(DECODE_LOAD, 1.0)
    timing.clear_steps_in_flight()
    timing.record_answered_step(0.5, 2.0)
    assert timing.make_profile(CostModel(COEFFICIENTS)) == TimingProfile(COEFFICIENTS)


def test_noise_is_replayed_in_order_and_repeats():
    noise_replay = TimingReplay(TimingProfile(COEFFICIENTS, {SHORT_STEP_KIND: [1.0, 2.0, 3.0]}), seed=0)
    played = [round(noise_replay.step_seconds(DECODE_LOAD) / 0.01) for _ in range(6)]
    assert played[:3] == played[3:]
    assert "".join(map(str, played)) in "123123123"


def test_seed_chooses_where_the_noise_replay_starts():
    profile = TimingProfile(COEFFICIENTS, {SHORT_STEP_KIND: [float(number) for number in range(1, 1000)]})
    assert (TimingReplay(profile, 1).step_seconds(DECODE_LOAD) == TimingReplay(profile, 1).step_seconds(DECODE_LOAD)
            != TimingReplay(profile, 2).step_seconds(DECODE_LOAD))


def test_step_sent_ahead_is_answered_after_the_previous_one():
    noise_replay = TimingReplay(TimingProfile(COEFFICIENTS, idle_overheads=[0.005], pipelined_overheads=[0.001]),
                                seed=0)
    assert noise_replay.answer_time(1.0, None, 0.02) == pytest.approx(1.025)
    assert noise_replay.answer_time(1.0, 1.5, 0.02) == pytest.approx(1.521)
    assert noise_replay.answer_time(1.6, 1.5, 0.02) == pytest.approx(1.625)
