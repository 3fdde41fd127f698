"""Tests of router/scheduler/cost_model.py."""

import random

import pytest

from router.scheduler.cost_model import CAUTION_AT_START, LEAST_CAUTION, CostModel, Load, fit
from router.scheduler.plan import Measurement

TRUE = (0.006, 3e-5, 4e-5, 4.4e-8)
LOADS = [Load(1, 0, 100), Load(64, 0, 64), Load(64, 0, 64_000), Load(1, 4096, 4096), Load(2, 512, 9000)]


def seconds(load, coefficients=TRUE):
    return sum(c * x for c, x in zip(coefficients, load.terms, strict=True))


def measurements(coefficients=TRUE):
    return [Measurement(m.rows, m.chunk_tokens, m.context, seconds(m, coefficients)) for m in LOADS]


def loads(rng):
    while True:
        yield Load(rng.randint(1, 64), rng.choice([0, 0, 256, 1024]), rng.randint(100, 60_000))


def test_exact_measurements_are_reproduced():
    assert fit(measurements()) == pytest.approx(TRUE, rel=0.01)


def test_no_coefficient_is_negative_whatever_was_measured():
    noisy = [Measurement(m.rows, m.chunk_tokens, m.context, seconds(m) * f)
             for m, f in zip(LOADS, (2.0, 0.5, 0.3, 1.5, 0.4), strict=True)]
    assert min(fit(noisy)) > 0.0


def test_without_measurements_there_is_still_a_model():
    assert CostModel.measured(()).predict(Load(1, 0, 1)) > 0.0


def test_a_model_wrong_by_a_factor_of_two_is_right_after_fifty_steps():
    rng, model = random.Random(1), CostModel.measured(measurements(tuple(c / 2 for c in TRUE)))
    for load, _ in zip(loads(rng), range(50), strict=False):
        model.observe(load, seconds(load) * rng.lognormvariate(0, 0.1))
    for load, _ in zip(loads(rng), range(50), strict=False):
        assert model.predict(load) == pytest.approx(seconds(load), rel=0.2)


def test_hiccups_do_not_make_the_model_slow():
    rng, model = random.Random(2), CostModel.measured(measurements())
    for load, _ in zip(loads(rng), range(500), strict=False):
        model.observe(load, seconds(load) * rng.lognormvariate(0, 0.1) * (3.0 if rng.random() < 0.01 else 1.0))
    assert model.predict(LOADS[2]) == pytest.approx(seconds(LOADS[2]), rel=0.2)
    assert 1.2 < model.caution < 1.5


def test_caution_starts_high_and_falls_on_a_steady_machine():
    model = CostModel.measured(measurements())
    assert model.caution == CAUTION_AT_START
    for _ in range(100):
        model.observe(LOADS[1], seconds(LOADS[1]))
    assert model.caution == LEAST_CAUTION


def test_what_no_step_excites_stays_as_it_was():
    model = CostModel.measured(measurements())
    for _ in range(2000):
        model.observe(Load(8, 0, 8000), seconds(Load(8, 0, 8000)))
    assert model.predict(Load(8, 1024, 9024)) == pytest.approx(seconds(Load(8, 1024, 9024)), rel=0.05)


def busy(factors):
    """Return a model measured at warm-up while other programs slow each part of a step by its factor."""
    return CostModel.measured(measurements(tuple(c * f for c, f in zip(TRUE, factors, strict=True))))


@pytest.mark.parametrize("factors", [
    (30, 30, 30, 30), (0.1, 0.1, 0.1, 0.1), (30, 2, 2, 1), (3, 3, 3, 3), (1, 5, 10, 5)])
@pytest.mark.parametrize("others", [0, 500])
def test_what_a_busy_minute_cost_is_forgotten_within_fifty_steps(factors, others):
    """The number of steps that run on the busy machine, and match its predictions, makes no difference."""
    rng, model = random.Random(3), busy(factors)
    for load, _ in zip(loads(rng), range(others), strict=False):
        model.observe(load, seconds(load, tuple(c * f for c, f in zip(TRUE, factors, strict=True))))
    for load, _ in zip(loads(rng), range(50), strict=False):
        model.observe(load, seconds(load) * rng.lognormvariate(0, 0.05))
    errors = [model.predict(load) / seconds(load) for load, _ in zip(loads(rng), range(50), strict=False)]
    assert 0.8 < min(errors) <= max(errors) < 1.25
    assert model.caution <= CAUTION_AT_START


def test_what_prompts_cost_follows_when_only_decodes_were_seen_since():
    model = busy((8, 8, 8, 8))
    for _ in range(50):
        model.observe(Load(8, 0, 8000), seconds(Load(8, 0, 8000)))
    chunk = Load(8, 1024, 9024)
    assert model.predict(chunk) == pytest.approx(seconds(chunk), rel=0.1)


def test_a_new_pace_is_told():
    model = busy((4, 4, 4, 4))
    factors = [model.observe(LOADS[1], seconds(LOADS[1])) for _ in range(20)]
    told = [factor for factor in factors if factor != 1.0]
    assert len(told) == 1
    assert 0.2 < told[0] < 0.6
