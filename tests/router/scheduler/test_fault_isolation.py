"""Tests of router/scheduler/fault_isolation.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request import Request
from router.scheduler.fault_isolation import Trials
from router.scheduler.sequence import Sequence


def members(count):
    return [Sequence(Request(str(n), (1,), 1), n, 0.0) for n in range(count)]


def admitted(trials, sequences, stuck=()):
    first = trials.first(lambda sequence: sequence.number in stuck)
    return [sequence.number for sequence in sequences if first is None or sequence.number in first]


def test_without_trials_everybody_is_admitted():
    assert admitted(Trials(), members(3)) == [0, 1, 2]


def test_who_fails_alone_is_guilty():
    (one,) = members(1)
    assert Trials().accuse([one], alone=True) is one


def test_who_failed_in_company_is_tried_in_halves():
    trials, everyone = Trials(), members(4)
    assert trials.accuse(everyone, alone=False) is None
    assert admitted(trials, everyone) == [0, 1]


def test_who_is_left_of_a_company_is_tried_alone_and_not_guilty_yet():
    trials, (one, _) = Trials(), members(2)
    assert trials.accuse([one], alone=False) is None
    assert admitted(trials, [one]) == [0]


def test_suspects_that_cannot_start_let_others_go_before_them():
    trials, everyone = Trials(), members(4)
    trials.accuse(everyone, alone=False)
    assert admitted(trials, everyone, stuck=[0]) == [0, 1]
    assert admitted(trials, everyone, stuck=[0, 1]) == [2, 3]
    assert admitted(trials, everyone, stuck=[0, 1, 2, 3]) == [0, 1, 2, 3]


def test_the_second_half_comes_when_the_first_is_cleared():
    trials, everyone = Trials(), members(4)
    trials.accuse(everyone, alone=False)
    trials.clear(everyone[0])
    trials.clear(everyone[1])
    assert admitted(trials, everyone) == [2, 3]


def test_one_suspect_beside_the_cleared_is_tried_alone_before_it_is_guilty():
    trials, everyone = Trials(), members(2)
    trials.accuse(everyone, alone=False)
    trials.clear(everyone[0])
    assert trials.accuse(everyone, alone=False) is None
    assert admitted(trials, everyone) == [1]
    assert trials.accuse([everyone[1]], alone=True) is everyone[1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
@given(data=st.data())
def test_exactly_the_guilty_one_is_found_and_soon(count, data):
    guilty = data.draw(st.integers(0, count - 1))
    trials, waiting, steps = Trials(), members(count), 0
    running: list[Sequence] = []
    while waiting:
        running += [s for s in waiting if s.number in admitted(trials, waiting)]
        waiting = [s for s in waiting if s not in running]
        steps += 1
        if any(s.number == guilty for s in running):
            found = trials.accuse(running, alone=len(running) == 1)
            waiting, running = running + waiting, []
            if found is not None:
                assert found.number == guilty
                waiting.remove(found)
                guilty = -1
        else:
            for sequence in running:
                trials.clear(sequence)
    assert guilty == -1
    assert not trials
    assert steps <= 4 + 3 * count.bit_length()
