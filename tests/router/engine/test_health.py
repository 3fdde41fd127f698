"""Readiness of the server; the clock is an argument."""

from support.plans_in_flight import add_plan, make_plans, run_steps, run_with_two_plans

from router.engine.health import STARTING_REASON, Health
from router.engine.plans_in_flight import MIN_STEP_LIMIT_SECONDS, PlansInFlight


def make_ready_health(plans: PlansInFlight) -> Health:
    health = Health(plans)
    health.set_ready()
    return health


def test_server_is_unhealthy_until_it_is_ready() -> None:
    health = Health(make_plans())
    assert health.why_unavailable(0.0) == STARTING_REASON
    health.set_ready()
    assert health.why_unavailable(1e9) == ""


def test_step_may_take_the_minimum_limit_whatever_earlier_steps_took() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    now = run_steps(plans, 100, 0.01)
    add_plan(plans, 0.01, now)
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS) == ""
    assert health.why_unavailable(now + MIN_STEP_LIMIT_SECONDS
                                  + 0.1) == "no step has ended for 5.1 seconds, where 5.0 are the most"


def test_step_time_counts_from_the_last_completed_step_while_others_are_in_flight() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    add_plan(plans, 0.0, 0.0)
    add_plan(plans, 0.0, 0.0)
    plans.drop_oldest(4.0)
    assert plans.seconds_without_progress(8.0) == 4.0
    assert health.why_unavailable(8.0) == ""
    assert health.why_unavailable(46.0) != ""


def test_idle_server_stays_healthy_and_the_next_step_gets_the_full_limit() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    now = run_steps(plans, 3, 0.1) + 1000.0
    assert health.why_unavailable(now) == ""
    add_plan(plans, 0.0, now)
    assert health.why_unavailable(now + 4.9) == ""


def test_steps_in_flight_at_a_shard_loss_are_not_waited_for():
    async def scenario(awaited, answers, wake):
        health = make_ready_health(awaited)
        health.set_unready("the shards are lost")
        assert health.why_unavailable(100.0) == "the shards are lost"
        awaited.cancel_all()
        health.set_ready()
        assert health.why_unavailable(100.0) == ""
    run_with_two_plans(scenario)


def test_server_that_shuts_down_never_becomes_healthy_again() -> None:
    plans = make_plans()
    health = make_ready_health(plans)
    add_plan(plans, 0.0, 0.0)
    health.set_unready_permanently("the server is shutting down")
    plans.drop_oldest(1.0)
    health.set_unready("the shards are lost")
    health.set_ready()
    assert health.why_unavailable(2.0) == "the server is shutting down"
