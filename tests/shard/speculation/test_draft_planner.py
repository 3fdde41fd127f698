"""How many guesses a step verifies: as many as raise its expected tokens per second."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks

from shard.speculation.draft_planner import FIRST_HIT_RATE, MIN_GAIN, DraftPlanner, StepTimePredictor, broadcast_drafts
from shard.state.sequence import Sequence
from shard.state.step import PrefillChunk, Step

FREE_ROWS = StepTimePredictor([(1, 0.1), (100, 0.1)])
COSTLY_ROWS = StepTimePredictor([(1, 0.1), (2, 0.2)])


def make_repeating(sequence_id: int = 1, hit_rate: float | None = None) -> Sequence:
    """Return a sequence whose tokens repeat 7, 8, 9."""
    sequence = Sequence.from_prompt(sequence_id, [7, 8, 9, 7, 8, 9], [0])
    if hit_rate is not None:
        DraftPlanner(1, 100, COSTLY_ROWS).plan(Step([sequence]))
        sequence.draft_state.hit_rate = hit_rate
    return sequence


def plan(planner: DraftPlanner, *decodes: Sequence, num_chunk_tokens: int = 0) -> dict[int, list[int]]:
    chunks = [PrefillChunk(Sequence.from_prompt(99, [0] * num_chunk_tokens, [0]), 0, num_chunk_tokens)]
    step = Step(list(decodes), chunks if num_chunk_tokens else [])
    planner.plan(step)
    return step.drafts


# -- seconds of a step


def test_times_of_the_warmup_are_interpolated_and_extrapolated() -> None:
    step_seconds = StepTimePredictor([(1, 1.0), (3, 2.0), (5, 4.0)])
    assert [step_seconds.predict(rows) for rows in (1, 2, 3, 4, 5, 6)] == [
        (1.0, 0.5), (1.5, 0.5), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0)]


def test_more_rows_never_count_as_faster() -> None:
    step_seconds = StepTimePredictor([(1, 2.0), (4, 1.5), (8, 3.0), (1, 9.0)])
    assert [step_seconds.predict(rows)[0] for rows in (1, 4, 8)] == [2.0, 2.0, 3.0]


@pytest.mark.parametrize("measured", [[], [(4, 0.5)]])
def test_a_row_costs_nothing_without_two_measurements(measured: list[tuple[int, float]]) -> None:
    assert StepTimePredictor(measured).predict(50)[1] == 0.0


@pytest.mark.parametrize("measured", [[], [(1, 1.0), (100, 1.1)], [(1, 0.01), (4, 5.0)]])
def test_cost_of_a_row_is_learnt_whatever_the_warmup_measured(measured: list[tuple[int, float]]) -> None:
    step_seconds, rng = StepTimePredictor(measured), random.Random(1)
    for _ in range(300):
        num_rows = rng.choice([1, 2, 5, 9])
        step_seconds.record(num_rows, (0.1 + 0.02 * num_rows) * rng.uniform(0.9, 1.1))
    seconds, row_seconds = step_seconds.predict(5)
    assert seconds == pytest.approx(0.2, rel=0.1)
    assert row_seconds == pytest.approx(0.02, rel=0.4)


def test_relative_cost_by_warmup_holds_while_steps_are_alike() -> None:
    """On a machine that is now three times as slow a row costs three times as much."""
    step_seconds = StepTimePredictor([(1, 0.1), (11, 0.2)])
    for _ in range(100):
        step_seconds.record(1, 0.3)
    assert step_seconds.predict(1) == (pytest.approx(0.3), pytest.approx(0.03))


def test_interrupted_step_changes_little() -> None:
    step_seconds = StepTimePredictor([(1, 0.1), (11, 0.2)])
    for _ in range(100):
        step_seconds.record(1, 0.1)
    step_seconds.record(9, 60.0)
    assert step_seconds.predict(1)[0] < 0.12


# -- plans


def test_all_guesses_are_verified_where_rows_cost_nothing() -> None:
    assert plan(DraftPlanner(4, 100, FREE_ROWS), make_repeating(hit_rate=0.9)) == {1: [7, 8, 9, 7]}


def test_no_guess_is_verified_where_a_row_costs_as_much_as_a_step() -> None:
    assert plan(DraftPlanner(4, 100, COSTLY_ROWS), make_repeating(hit_rate=0.9)) == {}


def test_no_guess_of_a_sequence_is_verified_whose_guesses_are_wrong() -> None:
    drafts = plan(DraftPlanner(4, 100, FREE_ROWS), make_repeating(1, hit_rate=MIN_GAIN / 2),
                  make_repeating(2, hit_rate=0.9))
    assert drafts.keys() == {2}


def test_sequences_without_guesses_are_left_out() -> None:
    unrepeated = Sequence.from_prompt(1, [1, 2, 3, 4, 5], [0])
    assert plan(DraftPlanner(4, 100, FREE_ROWS), unrepeated) == {}


def test_a_row_that_pays_in_a_small_step_does_not_in_a_large_one() -> None:
    few_rows_are_cheap = StepTimePredictor([(1, 0.1), (8, 0.11), (16, 0.8)])
    planner = DraftPlanner(4, 100, few_rows_are_cheap)
    assert plan(planner, make_repeating(hit_rate=0.9))
    assert not plan(planner, make_repeating(hit_rate=0.9), num_chunk_tokens=20)


def test_guesses_end_where_the_model_has_no_positions_left() -> None:
    assert plan(DraftPlanner(4, 8, FREE_ROWS), make_repeating(hit_rate=0.9)) == {1: [7, 8]}
    assert plan(DraftPlanner(4, 6, FREE_ROWS), make_repeating(hit_rate=0.9)) == {}


@given(hit_rates=st.lists(st.floats(0, 1), min_size=1, max_size=6), slope=st.floats(0, 0.1))
def test_plan_has_the_most_expected_tokens_per_second(hit_rates: list[float], slope: float) -> None:
    """No plan with one guess less has more, and none with one more has more by MIN_GAIN."""
    step_seconds = StepTimePredictor([(1, 0.1), (100, 0.1 + 99 * slope)])
    sequences = [make_repeating(number, rate) for number, rate in enumerate(hit_rates)]
    drafts = plan(DraftPlanner(4, 100, step_seconds), *sequences)
    lengths = [len(drafts.get(number, ())) for number in range(len(hit_rates))]

    def rate(changed: list[int]) -> float:
        expected = sum(sum(hit_rate ** j for j in range(length + 1))
                       for hit_rate, length in zip(hit_rates, changed, strict=True))
        return expected / step_seconds.predict(len(changed) + sum(changed))[0]

    for index, length in enumerate(lengths):
        if length:
            assert rate([*lengths[:index], length - 1, *lengths[index + 1:]]) <= rate(lengths) * (1 + 1e-9)
        if length < 4:
            longer = rate([*lengths[:index], length + 1, *lengths[index + 1:]])
            assert longer <= rate(lengths) * (1 + MIN_GAIN + 1e-9)


# -- what came true


def test_hit_rate_follows_the_guesses_that_a_step_verified() -> None:
    sequence, planner = make_repeating(hit_rate=0.5), DraftPlanner(4, 100, FREE_ROWS)
    planner.record(Step([sequence], drafts={1: [7, 8, 9]}), {1: [7, 8, 1]}, 0.1)  # two came true, one did not
    assert sequence.draft_state.hit_rate == pytest.approx(((0.5 * 0.8 + 0.2) * 0.8 + 0.2) * 0.8)


def test_first_guess_counts_though_no_step_verified_it() -> None:
    sequence, planner = make_repeating(), DraftPlanner(4, 100, COSTLY_ROWS)
    assert plan(planner, sequence) == {}
    planner.record(Step([sequence]), {1: [7]}, 0.1)
    assert sequence.draft_state.hit_rate > FIRST_HIT_RATE


def test_failed_sequence_changes_nothing() -> None:
    sequence, planner = make_repeating(), DraftPlanner(4, 100, FREE_ROWS)
    planner.plan(Step([sequence]))
    planner.record(Step([sequence], drafts={1: [7]}), {}, 0.1)
    assert sequence.draft_state.hit_rate == FIRST_HIT_RATE


# -- several ranks


def test_all_ranks_verify_the_guesses_of_rank_0() -> None:
    sequences = [make_repeating(number) for number in (1, 2, 3)]
    plans = {0: {1: [7, 8], 3: [7, 8, 9]}, 1: {2: [5]}}

    def share(group: InProcessRankGroup) -> dict[int, list[int]]:
        step = Step(sequences, drafts=dict(plans[group.rank]))
        broadcast_drafts(step, 3, group)
        return step.drafts

    assert run_on_ranks(2, share) == [plans[0], plans[0]]


def test_ranks_agree_that_nothing_is_guessed() -> None:
    def share(group: InProcessRankGroup) -> dict[int, list[int]]:
        step = Step([make_repeating()], drafts={1: [7]} if group.rank else {})
        broadcast_drafts(step, 4, group)
        return step.drafts

    assert run_on_ranks(2, share) == [{}, {}]
