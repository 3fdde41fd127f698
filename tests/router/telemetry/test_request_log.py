"""Records of requests, and how long they are kept."""

import pytest

from router.request import ANYONE, Tenant
from router.scheduler.timeline import Cause, Story
from router.telemetry.request_log import Account, Accounts


def account(request_id="mine", tenant=""):
    return Account(request_id, tenant, 3, 0.0, Story(1.0))


@pytest.mark.parametrize(("cause", "state"), [
    (Cause.QUEUE, "waiting"), (Cause.PREFILL, "running"), (Cause.DECODE, "running"), (Cause.READER, "waiting")])
def test_the_state_follows_from_the_story(cause, state):
    one = account()
    one.story.turn(cause, 2.0)
    assert one.state == state
    one.story.end(3.0)
    assert one.state == "over"


def test_a_request_is_known_while_it_is_served_and_after():
    accounts, one = Accounts(), account()
    accounts.open(one)
    assert accounts.get("mine") is one
    accounts.close(one, 5.0)
    assert (accounts.get("mine"), one.story.ended) == (one, 5.0)
    assert accounts.get("other") is None


def test_what_the_core_said_of_the_end_holds():
    accounts, one = Accounts(), account()
    accounts.open(one)
    one.story.end(2.0)
    accounts.close(one, 5.0)
    assert one.story.ended == 2.0


def test_the_oldest_that_are_over_are_forgotten_and_those_served_are_not():
    accounts = Accounts(kept=2)
    accounts.open(account("served"))
    for name in ("a", "b", "c"):
        accounts.open(one := account(name))
        accounts.close(one, 5.0)
    assert [accounts.get(name) is not None for name in ("served", "a", "b", "c")] == [True, False, True, True]


def test_an_id_that_nobody_has_may_be_used():
    assert Accounts().may_use("mine", ANYONE)


def test_an_id_is_taken_while_its_request_is_served_and_then_free_for_its_tenant():
    accounts, one = Accounts(), account(tenant="a")
    accounts.open(one)
    assert not accounts.may_use("mine", Tenant("a"))
    accounts.close(one, 5.0)
    assert accounts.may_use("mine", Tenant("a"))
    assert not accounts.may_use("mine", Tenant("b"))


def test_of_two_with_one_id_the_later_one_is_told_of():
    accounts, first, second = Accounts(), account(), account()
    accounts.open(first)
    accounts.open(second)
    accounts.close(first, 5.0)
    assert accounts.get("mine") is second
    accounts.close(second, 6.0)
    assert accounts.get("mine") is second
    accounts.open(third := account())
    assert accounts.get("mine") is third
