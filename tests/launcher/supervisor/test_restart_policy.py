"""Tests of the pauses before a dead process is replaced, and of giving up."""

from launcher.supervisor.restart_policy import MAX_DEATHS, RESTART_PAUSES_SECONDS, WINDOW_SECONDS, RestartPolicy


def get_pauses(*death_times: float) -> list[float | None]:
    policy = RestartPolicy(RESTART_PAUSES_SECONDS)
    return [policy.record_death_and_choose_pause(time) for time in death_times]


def test_pauses_double_until_the_fifth_death_in_five_minutes() -> None:
    assert get_pauses(0, 10, 20, 30, 40) == [1.0, 2.0, 4.0, 8.0, None]


def test_rare_deaths_are_always_replaced_after_bounded_pauses() -> None:
    assert (get_pauses(*(WINDOW_SECONDS / (MAX_DEATHS - 1) * number for number in range(9)))
            == [1, 2, 4, 8, 16, 30, 30, 30, 30])


def test_five_minutes_without_a_death_reset_the_pauses() -> None:
    assert get_pauses(0, 10, 10 + WINDOW_SECONDS, 20 + WINDOW_SECONDS) == [1.0, 2.0, 1.0, 2.0]


def test_old_deaths_do_not_count() -> None:
    assert get_pauses(0, 1, 2, 250, 301, 302.5)[-2:] == [16.0, 30.0]


def test_deaths_whose_cause_was_found_do_not_count() -> None:
    policy = RestartPolicy(RESTART_PAUSES_SECONDS)
    for request in range(4):  # each ends the processes three times before it is found
        pauses = [policy.record_death_and_choose_pause(20.0 * request + death) for death in range(3)]
        assert pauses == [1.0, 2.0, 4.0]
        policy.forget_recent_deaths(3)
    assert policy.record_death_and_choose_pause(100.0) == 1.0


def test_losses_have_pauses_and_no_limit() -> None:
    policy = RestartPolicy(RESTART_PAUSES_SECONDS)
    losses = [policy.record_loss_and_choose_pause(10.0 * number) for number in range(MAX_DEATHS + 2)]
    assert losses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert policy.record_death_and_choose_pause(100.0) == 30.0
