"""Laws of routing policies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request import ADAPTER, LoadableResource, Request
from router.simulation.routing import ROUTING_POLICIES, AdapterAffinity, compute_load_limit, rank_replicas


def make_request(prefix=(), adapter=None):
    return Request("a", (0,), 1, block_hashes=tuple(bytes([block]) for block in prefix),
                   adapter=None if adapter is None else LoadableResource(ADAPTER, adapter))


REQUESTS = st.builds(make_request, st.lists(st.integers(0, 3), max_size=3), st.none() | st.integers(1, 5))


@st.composite
def histories(draw):
    """Return a number of replicas and requests, each with the loads that the balancer sees."""
    num_replicas = draw(st.integers(1, 5))
    loads = st.lists(st.integers(0, 20), min_size=num_replicas, max_size=num_replicas)
    return num_replicas, draw(st.lists(st.tuples(REQUESTS, loads), max_size=20))


def choose_all(name, num_replicas, history):
    policy = ROUTING_POLICIES[name](num_replicas, 100)
    return [policy.choose(request, loads) for request, loads in history]


@pytest.mark.parametrize("name", ROUTING_POLICIES)
@given(history=histories())
def test_choice_is_a_replica_and_depends_on_nothing_else(name, history):
    choices = choose_all(name, *history)
    assert all(0 <= choice < history[0] for choice in choices)
    assert choices == choose_all(name, *history)


@given(history=histories())
def test_round_robin_takes_each_in_turn(history):
    num_replicas, requests = history
    assert choose_all("round-robin", num_replicas, requests) == [number % num_replicas
                                                                 for number in range(len(requests))]


@given(history=histories())
def test_least_never_picks_a_fuller_one(history):
    for choice, (_, loads) in zip(choose_all("least", *history), history[1], strict=True):
        assert loads[choice] == min(loads)


@pytest.mark.parametrize("name", ["prefix", "adapter"])
@given(history=histories())
def test_affinity_keeps_the_bound_of_load(name, history):
    for choice, (_, loads) in zip(choose_all(name, *history), history[1], strict=True):
        assert loads[choice] < compute_load_limit(loads)


@given(history=histories())
def test_prefix_stays_where_most_of_it_was_sent(history):
    num_replicas, requests = history
    policy, sent = ROUTING_POLICIES["prefix"](num_replicas, 100), [set() for _ in range(num_replicas)]
    for request, loads in requests:
        choice, hashes = policy.choose(request, loads), request.block_hashes
        known = [next((index for index, name in enumerate(hashes) if name not in names), len(hashes)) for names in sent]
        allowed = [number for load, number in zip(loads, known, strict=True) if load < compute_load_limit(loads)]
        assert known[choice] == max(allowed) or (max(allowed) == 0 and loads[choice] == min(loads))
        sent[choice].update(hashes)


def test_prefix_that_was_sent_long_ago_is_forgotten():
    policy = ROUTING_POLICIES["prefix"](2, 2)
    assert [policy.choose(make_request(blocks), [0, 0]) for blocks in ([1, 2], [1, 2], [3, 4], [5, 6], [7, 8])] == [
        0, 0, 1, 0, 1]
    assert policy.choose(make_request([1, 2]), [1, 0]) == 1


@given(adapter=st.integers(1, 1000), num_replicas=st.integers(1, 8))
def test_adapter_has_a_replica_of_its_own_unless_it_is_full(adapter, num_replicas):
    policy, idle = AdapterAffinity(num_replicas, 0), [0] * num_replicas
    first, *others = rank_replicas(adapter, num_replicas)
    assert sorted([first, *others]) == [*range(num_replicas)]
    assert policy.choose(make_request(adapter=adapter), idle) == first
    full = [9 if replica == first else 0 for replica in range(num_replicas)]
    assert policy.choose(make_request(adapter=adapter), full) == (others[0] if others else first)


@given(adapter=st.integers(1, 1000), num_replicas=st.integers(1, 8))
def test_new_replica_takes_adapters_but_moves_none_between_others(adapter, num_replicas):
    before, after = (rank_replicas(adapter, number) for number in (num_replicas, num_replicas + 1))
    assert tuple(replica for replica in after if replica < num_replicas) == before


def test_replicas_are_ranked_once_for_each_adapter():
    policy, number_before = AdapterAffinity(100, 0), rank_replicas.cache_info().misses
    for request in [make_request(adapter=5_001), make_request(adapter=5_002)] * 20:
        policy.choose(request, [0] * 100)
    assert rank_replicas.cache_info().misses == number_before + 2
