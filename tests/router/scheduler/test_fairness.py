"""Tests of FairShares in router/scheduler/waiting_queue.py."""

from support.scheduling.method_overrides import override_methods

from router.request import Request, Tenant
from router.scheduler.sequence import Sequence
from router.scheduler.waiting_queue import FairShares

TENANT_ONE, TENANT_THREE = Tenant("one"), Tenant("three", weight=3.0)


def make_fair_shares(*tenants: Tenant) -> FairShares:
    fair_shares = FairShares()
    for tenant in tenants:
        fair_shares.add_sequence(tenant)
    return fair_shares


def test_tenant_with_the_least_charge_for_its_weight_goes_first() -> None:
    fair_shares = make_fair_shares(TENANT_ONE, TENANT_THREE)
    fair_shares.charge_tenant(TENANT_ONE, 10.0)
    fair_shares.charge_tenant(TENANT_THREE, 20.0)
    assert fair_shares.sort_tenants(["one", "three"]) == ["three", "one"]
    fair_shares.charge_tenant(TENANT_THREE, 11.0)
    assert fair_shares.sort_tenants(["one", "three"]) == ["one", "three"]


def test_idle_tenant_saves_up_no_credit() -> None:
    fair_shares = make_fair_shares(TENANT_ONE)
    fair_shares.charge_tenant(TENANT_ONE, 100.0)
    fair_shares.add_sequence(TENANT_THREE)
    fair_shares.charge_tenant(TENANT_THREE, 3.0)
    assert fair_shares.sort_tenants(["one", "three"]) == ["one", "three"]


def test_returning_tenant_still_owes_its_charges() -> None:
    fair_shares = make_fair_shares(TENANT_ONE, TENANT_THREE)
    fair_shares.charge_tenant(TENANT_ONE, 100.0)
    fair_shares.remove_sequence(TENANT_ONE)
    fair_shares.add_sequence(TENANT_ONE)
    assert fair_shares.sort_tenants(["one", "three"]) == ["three", "one"]


def test_single_tenant_has_no_competition() -> None:
    fair_shares = make_fair_shares(TENANT_ONE, TENANT_ONE)
    assert not fair_shares.has_several_tenants
    fair_shares.add_sequence(TENANT_THREE)
    assert fair_shares.has_several_tenants
    fair_shares.remove_sequence(TENANT_THREE)
    assert not fair_shares.has_several_tenants
    assert fair_shares.num_unfinished(TENANT_ONE) == 2


def test_prompt_is_charged_once_and_cached_tokens_never() -> None:
    fair_shares = make_fair_shares(TENANT_ONE, TENANT_THREE)
    sequence = Sequence(Request("1", (7,) * 100, 10, tenant=TENANT_ONE), 1, 0.0)
    charged: list[float] = []
    override_methods(fair_shares, charge_tenant=lambda _, cost: charged.append(cost))
    for computed, length in ((64, 32), (100, 36), (48, 48), (103, 55)):  # 32 cached; preempted at 100
        sequence.num_scheduled_tokens = computed
        fair_shares.charge_prompt(sequence, length)
    assert charged == [32, 36]


def test_resumed_tokens_are_charged_like_a_prompt() -> None:
    fair_shares = make_fair_shares(TENANT_ONE, TENANT_THREE)
    sequence = Sequence(Request("1", (7,) * 100, 80, tenant=TENANT_ONE, resumed_tokens=(8,) * 50), 1, 0.0)
    charged: list[float] = []
    override_methods(fair_shares, charge_tenant=lambda _, cost: charged.append(cost))
    sequence.num_scheduled_tokens = 150
    fair_shares.charge_prompt(sequence, 150)
    assert charged == [150]
