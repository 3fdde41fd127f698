"""Simulation of the core under a virtual clock with given step times."""

import pytest

from router.request import Request, Resource
from router.scheduler.plan import ModelFacts
from router.scheduler.settings import Policy
from router.simulation.simulation import Simulation
from router.simulation.timing import Pace
from router.simulation.trace import Arrival, Trace

FACTS = ModelFacts("none", "cpu", "none", 512, 4096, 16, 1000)
PACE = Pace((0.01, 1e-12, 1e-12, 1e-12))  # every step takes ten milliseconds


def arrival(at=0.0, prompt=20, output=5, most=None, **more):
    request = Request("a", (0,) * prompt, most or output, adapter=more.pop("adapter", None))
    return Arrival(at, request, output, **more)


def simulated(*arrivals, pace=PACE, facts=FACTS, seed=0, **policy):
    return Simulation(Policy(**policy), facts, Trace(list(arrivals)), pace, seed).run()


def test_the_first_token_takes_a_step_and_each_other_one_more():
    figures = simulated(arrival())
    assert figures.seconds["ttft"] == [pytest.approx(0.01)]
    assert figures.seconds["itl"] == [pytest.approx(0.01)] * 4
    assert figures.num_tokens == 5


def test_a_sequence_ends_where_it_ended_whatever_it_might_have_said():
    assert simulated(arrival(output=3, most=500)).num_tokens == 3


def test_who_leaves_without_a_token_is_gone():
    figures = simulated(arrival(output=50), arrival(at=0.001, leaves_after=0.02), max_batch_size=1)
    assert figures.num_tokens == 50


def test_what_cannot_be_taken_is_refused():
    assert simulated(arrival(), arrival(), arrival(), max_concurrent_requests=2).num_refused == 1


def test_a_small_cache_makes_sequences_yield():
    figures = simulated(*(arrival(prompt=100, output=80) for _ in range(4)),
                        facts=ModelFacts("none", "cpu", "none", 512, 4096, 16, 36))
    assert figures.num_yields > 0
    assert figures.num_tokens == 320


def test_adapters_are_there():
    assert simulated(arrival(adapter=Resource("adapter", 1))).num_tokens == 5


def test_what_passes_between_steps_counts():
    alone = simulated(arrival(), pace=Pace(PACE.coefficients, alone=[0.005]), look_ahead=1)
    ahead = simulated(arrival(), pace=Pace(PACE.coefficients, alone=[0.005], between=[0.001]), look_ahead=2)
    assert alone.seconds["itl"] == [pytest.approx(0.015)] * 4
    assert ahead.seconds["itl"] == [pytest.approx(0.011)] * 4


def test_nothing_is_planned_while_the_router_attends_to_those_who_come():
    figures = simulated(arrival(noticed_after=0.003), arrival(at=0.002, noticed_after=0.001))
    assert figures.seconds["ttft"] == [pytest.approx(0.013), pytest.approx(0.011)]  # in one step


def test_a_seed_gives_the_same_again():
    pace = Pace(PACE.coefficients, {(False, -7): [1.0, 1.5, 2.0, 0.5, 1.2], (True, -7): [1.0, 3.0]})
    runs = [simulated(*(arrival(at=0.01 * n) for n in range(9)), pace=pace, seed=seed).seconds for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_who_was_there_already_is_not_counted_among_those_who_came():
    figures = simulated(arrival(is_known=False), arrival(at=0.1))
    assert (figures.num_requests, len(figures.seconds["ttft"]), figures.num_tokens) == (1, 1, 10)
