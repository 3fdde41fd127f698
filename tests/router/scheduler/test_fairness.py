"""Tests of router/scheduler/fairness.py."""

from router.request import Request, Tenant
from router.scheduler.fairness import Shares
from router.scheduler.sequence import Sequence

ONE, THREE = Tenant("one"), Tenant("three", weight=3.0)


def shares(*tenants: Tenant) -> Shares:
    made = Shares()
    for tenant in tenants:
        made.enter(tenant)
    return made


def test_who_got_least_for_its_weight_goes_first() -> None:
    made = shares(ONE, THREE)
    made.charge(ONE, 10.0)
    made.charge(THREE, 20.0)
    assert made.order(["one", "three"]) == ["three", "one"]
    made.charge(THREE, 11.0)
    assert made.order(["one", "three"]) == ["one", "three"]


def test_who_comes_back_saved_up_nothing() -> None:
    made = shares(ONE)
    made.charge(ONE, 100.0)
    made.enter(THREE)
    made.charge(THREE, 3.0)
    assert made.order(["one", "three"]) == ["one", "three"]


def test_who_comes_back_still_owes_what_it_got() -> None:
    made = shares(ONE, THREE)
    made.charge(ONE, 100.0)
    made.leave(ONE)
    made.enter(ONE)
    assert made.order(["one", "three"]) == ["three", "one"]


def test_alone_nobody_needs_to_be_fair() -> None:
    made = shares(ONE, ONE)
    assert not made.several
    made.enter(THREE)
    assert made.several
    made.leave(THREE)
    assert not made.several
    assert made.num_present(ONE) == 2


def test_a_prompt_is_paid_once_and_what_was_found_in_the_cache_not_at_all() -> None:
    made = shares(ONE, THREE)
    sequence = Sequence(Request("1", (7,) * 100, 10, tenant=ONE), 1, 0.0)
    charged: list[float] = []
    made.charge = lambda _, cost: charged.append(cost)  # type: ignore[method-assign]
    for computed, length in ((64, 32), (100, 36), (48, 48), (103, 55)):  # 32 were cached; it yielded and came back
        sequence.computed = computed
        made.charge_prompt(sequence, length)
    assert charged == [32, 36]
