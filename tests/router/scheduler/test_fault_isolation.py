"""Tests of router/scheduler/fault_isolation.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request import Request
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.sequence import Sequence


def make_sequences(count):
    return [Sequence(Request(str(n), (1,), 1), n, 0.0) for n in range(count)]


def get_admitted(fault_isolation, sequences, stuck=()):
    first = fault_isolation.suspects_allowed_to_start(lambda sequence: sequence.id in stuck)
    return [sequence.id for sequence in sequences if first is None or sequence.id in first]


def test_everyone_is_admitted_without_suspects():
    assert get_admitted(FaultIsolation(), make_sequences(3)) == [0, 1, 2]


def test_sequence_that_fails_alone_is_blamed():
    (sequence,) = make_sequences(1)
    assert FaultIsolation().bisect_suspects([sequence], ran_alone=True) is sequence


def test_sequences_that_failed_together_are_tried_in_halves():
    fault_isolation, everyone = FaultIsolation(), make_sequences(4)
    assert fault_isolation.bisect_suspects(everyone, ran_alone=False) is None
    assert get_admitted(fault_isolation, everyone) == [0, 1]


def test_last_sequence_of_a_failed_step_is_tried_alone_before_it_is_blamed():
    fault_isolation, (sequence, _) = FaultIsolation(), make_sequences(2)
    assert fault_isolation.bisect_suspects([sequence], ran_alone=False) is None
    assert get_admitted(fault_isolation, [sequence]) == [0]


def test_suspects_that_cannot_start_let_others_go_first():
    fault_isolation, everyone = FaultIsolation(), make_sequences(4)
    fault_isolation.bisect_suspects(everyone, ran_alone=False)
    assert get_admitted(fault_isolation, everyone, stuck=[0]) == [0, 1]
    assert get_admitted(fault_isolation, everyone, stuck=[0, 1]) == [2, 3]
    assert get_admitted(fault_isolation, everyone, stuck=[0, 1, 2, 3]) == [0, 1, 2, 3]


def test_second_half_is_tried_when_the_first_is_cleared():
    fault_isolation, everyone = FaultIsolation(), make_sequences(4)
    fault_isolation.bisect_suspects(everyone, ran_alone=False)
    fault_isolation.clear_suspicions([everyone[0].id])
    fault_isolation.clear_suspicions([everyone[1].id])
    assert get_admitted(fault_isolation, everyone) == [2, 3]


def test_suspect_that_ran_beside_a_cleared_one_is_tried_alone_first():
    fault_isolation, everyone = FaultIsolation(), make_sequences(2)
    fault_isolation.bisect_suspects(everyone, ran_alone=False)
    fault_isolation.clear_suspicions([everyone[0].id])
    assert fault_isolation.bisect_suspects(everyone, ran_alone=False) is None
    assert get_admitted(fault_isolation, everyone) == [1]
    assert fault_isolation.bisect_suspects([everyone[1]], ran_alone=True) is everyone[1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 32])
@given(data=st.data())
def test_exactly_the_faulty_sequence_is_found_within_few_steps(count, data):
    guilty = data.draw(st.integers(0, count - 1))
    fault_isolation, waiting, steps = FaultIsolation(), make_sequences(count), 0
    running: list[Sequence] = []
    while waiting:
        running += [s for s in waiting if s.id in get_admitted(fault_isolation, waiting)]
        waiting = [s for s in waiting if s not in running]
        steps += 1
        if any(s.id == guilty for s in running):
            blamed = fault_isolation.bisect_suspects(running, ran_alone=len(running) == 1)
            waiting, running = running + waiting, []
            if blamed is not None:
                assert blamed.id == guilty
                waiting.remove(blamed)
                guilty = -1
        else:
            for sequence in running:
                fault_isolation.clear_suspicions([sequence.id])
    assert guilty == -1
    assert not fault_isolation.suspect_sets
    assert steps <= 4 + 3 * count.bit_length()
