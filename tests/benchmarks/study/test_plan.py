from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.study.plan import PARTS, Pace, Plan, Run, Scope, with_windows
from benchmarks.study.shapes import MEAN_SERVICE, simulated
from benchmarks.study.workloads import FIGURE_LENGTHS

PACE = Pace(compat=((1.0, 0.02), (200.0, 4.0)), short=((1.0, 0.01), (200.0, 2.0)), long=((8.0, 0.16), (64.0, 1.28)),
            together=160.0)
PLAN = Plan(simulated(1.0), Scope(seeds=2, levels=(0.5, 1.0, 2.0, 4.0), users=(1, 4)), PACE)


def test_policies_take_turns_within_a_seed() -> None:
    turns = list(PLAN.turns("compat"))
    assert [turn.policy for turn in turns] == ["nobatch", "static", "dynamic"] * 2
    assert [turn.runs[0].seed for turn in turns] == [0, 0, 0, 1, 1, 1]


def test_a_server_meets_all_rates_and_settings_only_every_second() -> None:
    assert [run.level for run in next(PLAN.turns("sweep")).runs] == [0.5, 1.0, 2.0, 4.0]
    assert [run.level for run in next(PLAN.turns("sweet")).runs] == [1.0, 4.0]


def test_every_preset_is_asked_of_every_policy() -> None:
    counts = Counter(run.workload for turn in PLAN.turns("workload") for run in turn.runs)
    assert counts == dict.fromkeys(("figure", "readme", "head"), 2 * len(with_windows(PLAN.scope)))


def test_windows_stand_behind_the_static_policy() -> None:
    assert with_windows(Scope(policies=("static", "mixed"), windows=(1.0, 4.0))) == (
        "static", "static-1", "static-4", "mixed")


@pytest.mark.parametrize("part", ["solo", *PARTS])
def test_every_run_has_a_name_and_settings_of_its_own(part: str) -> None:
    runs = [run for turn in PLAN.turns(part) for run in turn.runs]
    assert len({run.name for run in runs}) == len(runs)
    assert all(PLAN.told(run)["requests"] == len(PLAN.asks(run)) for run in runs)


def test_the_load_is_as_heavy_as_the_studys() -> None:
    """A server that is twice as fast gets requests at twice the rate."""
    run = Run("workload", "simulated", "figure", "mixed")
    mean = sum(PACE.seconds(run, length) for length in FIGURE_LENGTHS) / len(FIGURE_LENGTHS)
    assert PACE.speed(run) == pytest.approx(MEAN_SERVICE / mean)
    faster = replace(PACE, short=tuple((tokens, seconds / 2) for tokens, seconds in PACE.short))
    assert faster.speed(run) == pytest.approx(2 * PACE.speed(run))


@pytest.mark.parametrize("policy", ["nobatch", "static", "dynamic"])
def test_in_the_studys_mode_it_is_as_heavy_for_eight_at_once(policy: str) -> None:
    """The study's server generated 80 tokens per second for eight requests."""
    assert PACE.speed(Run("compat", "simulated", "figure", policy)) == pytest.approx(2.0)


def test_how_much_is_served_together_is_asked_by_as_many_as_are_heard() -> None:
    (run,) = list(PLAN.turns("solo"))[-1].runs
    asks = PLAN.asks(run)
    assert (run.concurrency, len(asks), {ask.output_tokens for ask in asks}) == (8, 16, {75})
    assert PLAN.router(run)["recompute"]


def test_a_level_is_a_share_of_what_one_at_a_time_can_serve() -> None:
    run = Run("sweep", "simulated", "poisson", "mixed", level=4.0)
    asks = PLAN.asks(run)
    assert len(asks) == 160
    assert len(asks) / asks[-1].at == pytest.approx(4.0 / PACE.mean_seconds, rel=0.3)
    assert run.concurrency is None


def test_users_ask_several_times_each() -> None:
    run = Run("users", "simulated", "closed", "mixed", level=32)
    assert (run.concurrency, len(PLAN.asks(run))) == (32, 192)


def test_a_cache_as_large_everywhere_is_part_of_the_settings() -> None:
    shape = replace(PLAN.shape, router={"max_batch_total_tokens": 4096})
    told = replace(PLAN, shape=shape).router(Run("sweep", "tiny", "poisson", "static-1", level=1.0))
    assert told["max_batch_total_tokens"] == 4096
    assert told["static_window_ms"] == pytest.approx(1e3 * PACE.mean_seconds)
