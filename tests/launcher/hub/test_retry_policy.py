"""Tests of the retry policy for requests to the Hub."""

from threading import Event

import pytest

from launcher.hub.client import ServerUnreachableError
from launcher.hub.retry_policy import RetryPolicy

RETRY_PAUSES = (0.0, 0.0, 0.0)
ANSWERED_ERROR, UNANSWERED_ERROR = (ServerUnreachableError("503", has_response=True),
                                    ServerUnreachableError("no address"))


class RecordingEvent(Event):
    """Event whose `wait` records the timeout and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout or 0.0)
        return False


def count_tries(retry_policy: RetryPolicy, *errors: ServerUnreachableError) -> int:
    remaining_errors = list(errors)

    def send_request() -> str:
        if remaining_errors:
            raise remaining_errors.pop(0)
        return "answer"

    try:
        assert retry_policy.call_with_retries(send_request) == "answer"
    except ServerUnreachableError:
        return len(errors) - len(remaining_errors)
    return len(errors) + 1


def test_success_needs_no_retry() -> None:
    assert count_tries(RetryPolicy(Event(), pytest.fail, RETRY_PAUSES)) == 1


def test_request_is_retried_once_per_pause() -> None:
    assert count_tries(RetryPolicy(Event(), str, RETRY_PAUSES), *[ANSWERED_ERROR] * 3) == 4
    assert count_tries(RetryPolicy(Event(), str, RETRY_PAUSES), *[ANSWERED_ERROR] * 9) == 4


def test_hub_that_never_answered_is_given_up_sooner() -> None:
    assert count_tries(RetryPolicy(Event(), str, RETRY_PAUSES), *[UNANSWERED_ERROR] * 9) == 2
    assert count_tries(RetryPolicy(Event(), str, RETRY_PAUSES), ANSWERED_ERROR, *[UNANSWERED_ERROR] * 9) == 4


def test_progress_renews_the_retries() -> None:
    policy = RetryPolicy(Event(), str, RETRY_PAUSES)
    for _ in range(10):
        policy.wait_before_retry(UNANSWERED_ERROR)
        policy.reset_failures()


def test_pauses_grow_and_follow_retry_after_within_limits() -> None:
    stop_event, messages = RecordingEvent(), []
    policy = RetryPolicy(stop_event, messages.append, (1.0, 2.0, 4.0, 8.0))
    for seconds in (0.0, 0.0, 30.0, 3600.0):
        policy.wait_before_retry(ServerUnreachableError("429", has_response=True, retry_after_seconds=seconds))
    assert stop_event.timeouts == [1.0, 2.0, 30.0, 60.0]
    assert messages[2] == "429; trying again in 30 s"


def test_nothing_is_retried_when_stopping() -> None:
    stopped = Event()
    stopped.set()
    assert count_tries(RetryPolicy(stopped, pytest.fail, RETRY_PAUSES), ANSWERED_ERROR) == 1
