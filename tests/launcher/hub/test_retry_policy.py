"""Tests of the retry policy for requests to the Hub."""

from threading import Event

import pytest

from launcher.hub.client import Unreachable
from launcher.hub.retry_policy import Patience

PAUSES = (0.0, 0.0, 0.0)
HEARD, SILENT = Unreachable("503", heard=True), Unreachable("no address")


class Watch(Event):
    """Event whose `wait` records the timeout and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def num_tries(patience: Patience, *errors: Unreachable) -> int:
    left = list(errors)

    def question() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    try:
        assert patience.ask(question) == "answer"
    except Unreachable:
        return len(errors) - len(left)
    return len(errors) + 1


def test_an_answer_needs_no_patience() -> None:
    assert num_tries(Patience(Event(), pytest.fail, PAUSES)) == 1


def test_it_asks_once_more_after_each_pause() -> None:
    assert num_tries(Patience(Event(), str, PAUSES), *[HEARD] * 3) == 4
    assert num_tries(Patience(Event(), str, PAUSES), *[HEARD] * 9) == 4


def test_a_hub_that_was_never_heard_of_is_given_up_sooner() -> None:
    assert num_tries(Patience(Event(), str, PAUSES), *[SILENT] * 9) == 2
    assert num_tries(Patience(Event(), str, PAUSES), HEARD, *[SILENT] * 9) == 4


def test_whatever_comes_renews_it() -> None:
    patience = Patience(Event(), str, PAUSES)
    for _ in range(10):
        patience.wait(SILENT)
        patience.renew()


def test_pauses_grow_and_are_as_long_as_the_hub_asks_for_within_reason() -> None:
    watch, said = Watch(), []
    patience = Patience(watch, said.append, (1.0, 2.0, 4.0, 8.0))
    for seconds in (0.0, 0.0, 30.0, 3600.0):
        patience.wait(Unreachable("429", heard=True, seconds=seconds))
    assert watch.waited == [1.0, 2.0, 30.0, 60.0]
    assert said[2] == "429; trying again in 30 s"


def test_nothing_is_asked_again_when_all_is_to_stop() -> None:
    stopped = Event()
    stopped.set()
    assert num_tries(Patience(stopped, pytest.fail, PAUSES), HEARD) == 1
