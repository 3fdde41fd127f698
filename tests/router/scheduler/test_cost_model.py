"""Tests of router/scheduler/cost_model.py."""

import random

import pytest

from router.model_info import StepMeasurement
from router.scheduler.cost_model import INITIAL_SAFETY_FACTOR, MIN_SAFETY_FACTOR, CostModel, StepLoad, fit_coefficients

TRUE_COEFFICIENTS = (0.006, 3e-5, 4e-5, 4.4e-8)
STEP_LOADS = [StepLoad(1, 0, 100), StepLoad(64, 0, 64), StepLoad(64, 0, 64_000), StepLoad(1, 4096, 4096),
              StepLoad(2, 512, 9000)]


def true_seconds(load, coefficients=TRUE_COEFFICIENTS):
    return sum(c * x for c, x in zip(coefficients, (1.0, load.rows, load.chunk_tokens, load.context), strict=True))


def make_measurements(coefficients=TRUE_COEFFICIENTS):
    return [StepMeasurement(m.rows, m.chunk_tokens, m.context, true_seconds(m, coefficients)) for m in STEP_LOADS]


def random_loads(rng):
    while True:
        yield StepLoad(rng.randint(1, 64), rng.choice([0, 0, 256, 1024]), rng.randint(100, 60_000))


def test_exact_measurements_recover_the_coefficients():
    assert fit_coefficients(make_measurements()) == pytest.approx(TRUE_COEFFICIENTS, rel=0.01)


def test_coefficients_are_never_negative():
    noisy = [StepMeasurement(m.rows, m.chunk_tokens, m.context, true_seconds(m) * f)
             for m, f in zip(STEP_LOADS, (2.0, 0.5, 0.3, 1.5, 0.4), strict=True)]
    assert min(fit_coefficients(noisy)) > 0.0


def test_model_without_measurements_predicts_a_positive_time():
    assert CostModel.from_measurements(()).predict(StepLoad(1, 0, 1)) > 0.0


def test_model_wrong_by_a_factor_of_two_is_right_after_fifty_steps():
    rng, model = random.Random(1), CostModel.from_measurements(
        make_measurements(tuple(c / 2 for c in TRUE_COEFFICIENTS)))
    for load, _ in zip(random_loads(rng), range(50), strict=False):
        model.observe(load, true_seconds(load) * rng.lognormvariate(0, 0.1))
    for load, _ in zip(random_loads(rng), range(50), strict=False):
        assert model.predict(load) == pytest.approx(true_seconds(load), rel=0.2)


def test_outliers_do_not_slow_the_predictions():
    rng, model = random.Random(2), CostModel.from_measurements(make_measurements())
    for load, _ in zip(random_loads(rng), range(500), strict=False):
        model.observe(load, true_seconds(load) * rng.lognormvariate(0, 0.1) * (3.0 if rng.random() < 0.01 else 1.0))
    assert model.predict(STEP_LOADS[2]) == pytest.approx(true_seconds(STEP_LOADS[2]), rel=0.2)
    assert 1.2 < model.safety_factor < 1.5


def test_safety_factor_starts_high_and_falls_on_a_steady_machine():
    model = CostModel.from_measurements(make_measurements())
    assert model.safety_factor == INITIAL_SAFETY_FACTOR
    for _ in range(100):
        model.observe(STEP_LOADS[1], true_seconds(STEP_LOADS[1]))
    assert model.safety_factor == MIN_SAFETY_FACTOR


def test_coefficients_without_evidence_stay_unchanged():
    model = CostModel.from_measurements(make_measurements())
    for _ in range(2000):
        model.observe(StepLoad(8, 0, 8000), true_seconds(StepLoad(8, 0, 8000)))
    assert model.predict(StepLoad(8, 1024, 9024)) == pytest.approx(true_seconds(StepLoad(8, 1024, 9024)), rel=0.05)


def make_busy_model(factors):
    """Return a model measured at warm-up while other programs slow each part of a step by its factor."""
    return CostModel.from_measurements(
        make_measurements(tuple(c * f for c, f in zip(TRUE_COEFFICIENTS, factors, strict=True))))


@pytest.mark.parametrize("factors", [
    (30, 30, 30, 30), (0.1, 0.1, 0.1, 0.1), (30, 2, 2, 1), (3, 3, 3, 3), (1, 5, 10, 5)])
@pytest.mark.parametrize("num_busy_steps", [0, 500])
def test_busy_warmup_is_forgotten_within_fifty_steps(factors, num_busy_steps):
    """The number of steps that run on the busy machine, and match its predictions, makes no difference."""
    rng, model = random.Random(3), make_busy_model(factors)
    for load, _ in zip(random_loads(rng), range(num_busy_steps), strict=False):
        model.observe(load, true_seconds(load, tuple(c * f for c, f in zip(TRUE_COEFFICIENTS, factors, strict=True))))
    for load, _ in zip(random_loads(rng), range(50), strict=False):
        model.observe(load, true_seconds(load) * rng.lognormvariate(0, 0.05))
    errors = [model.predict(load) / true_seconds(load) for load, _ in zip(random_loads(rng), range(50), strict=False)]
    assert 0.8 < min(errors) <= max(errors) < 1.25
    assert model.safety_factor <= INITIAL_SAFETY_FACTOR


def test_prompt_cost_is_corrected_by_decodes_alone():
    model = make_busy_model((8, 8, 8, 8))
    for _ in range(50):
        model.observe(StepLoad(8, 0, 8000), true_seconds(StepLoad(8, 0, 8000)))
    chunk = StepLoad(8, 1024, 9024)
    assert model.predict(chunk) == pytest.approx(true_seconds(chunk), rel=0.1)


def test_speed_change_is_reported_once():
    model = make_busy_model((4, 4, 4, 4))
    factors = [model.observe(STEP_LOADS[1], true_seconds(STEP_LOADS[1])) for _ in range(20)]
    changes = [factor for factor in factors if factor != 1.0]
    assert len(changes) == 1
    assert 0.2 < changes[0] < 0.6
