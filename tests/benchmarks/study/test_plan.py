from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.study.model_settings import STUDY_MEAN_REQUEST_SECONDS, make_simulated_model
from benchmarks.study.plan import (
    STUDY_PARTS,
    SoloCalibration,
    StudyPlan,
    StudyRun,
    StudyScope,
    list_policies_with_windows,
)
from benchmarks.study.workloads import FIGURE_OUTPUT_LENGTHS

SERVER_SPEED = SoloCalibration(compat_latencies=((1.0, 0.02), (200.0, 4.0)),
                               short_prompt_latencies=((1.0, 0.01), (200.0, 2.0)),
                               long_prompt_latencies=((8.0, 0.16), (64.0, 1.28)), busy_tokens_per_second=160.0)
STUDY_PLAN = StudyPlan(make_simulated_model(1.0), StudyScope(seeds=2, levels=(0.5, 1.0, 2.0, 4.0), users=(1, 4)),
                       SERVER_SPEED)


def test_policies_alternate_within_a_seed() -> None:
    turns = list(STUDY_PLAN.iter_policy_runs("compat"))
    assert [turn.policy for turn in turns] == ["nobatch", "static", "dynamic"] * 2
    assert [turn.runs[0].seed for turn in turns] == [0, 0, 0, 1, 1, 1]


def test_server_runs_all_levels_but_variants_only_some() -> None:
    assert [run.level for run in next(STUDY_PLAN.iter_policy_runs("sweep")).runs] == [0.5, 1.0, 2.0, 4.0]
    assert [run.level for run in next(STUDY_PLAN.iter_policy_runs("sweet")).runs] == [1.0, 4.0]


def test_every_preset_is_run_with_every_policy() -> None:
    counts = Counter(run.workload for turn in STUDY_PLAN.iter_policy_runs("workload") for run in turn.runs)
    num_policies = len(list_policies_with_windows(STUDY_PLAN.scope))
    assert counts == dict.fromkeys(("figure", "readme", "head"), 2 * num_policies)


def test_window_variants_follow_the_static_policy() -> None:
    assert list_policies_with_windows(StudyScope(policies=("static", "mixed"), windows=(1.0, 4.0))) == (
        "static", "static-1", "static-4", "mixed")


@pytest.mark.parametrize("part", ["solo", *STUDY_PARTS])
def test_every_run_has_a_unique_name_and_its_own_settings(part: str) -> None:
    runs = [run for turn in STUDY_PLAN.iter_policy_runs(part) for run in turn.runs]
    assert len({run.name for run in runs}) == len(runs)
    assert all(STUDY_PLAN.make_record_fingerprint(run)["requests"] == len(STUDY_PLAN.make_requests(run))
               for run in runs)


def test_load_is_scaled_to_the_server_speed() -> None:
    """A server that is twice as fast gets requests at twice the rate."""
    run = StudyRun("workload", "simulated", "figure", "mixed")
    mean = sum(SERVER_SPEED.interpolate_latency(run, length)
               for length in FIGURE_OUTPUT_LENGTHS) / len(FIGURE_OUTPUT_LENGTHS)
    assert SERVER_SPEED.compute_speedup_over_study(run) == pytest.approx(STUDY_MEAN_REQUEST_SECONDS / mean)
    faster = replace(SERVER_SPEED, short_prompt_latencies=tuple(
        (tokens, seconds / 2) for tokens, seconds in SERVER_SPEED.short_prompt_latencies))
    assert faster.compute_speedup_over_study(run) == pytest.approx(2 * SERVER_SPEED.compute_speedup_over_study(run))


@pytest.mark.parametrize("policy", ["nobatch", "static", "dynamic"])
def test_compat_load_is_scaled_to_eight_concurrent_requests(policy: str) -> None:
    """The study's server generated 80 tokens per second for eight requests."""
    run = StudyRun("compat", "simulated", "figure", policy)
    assert SERVER_SPEED.compute_speedup_over_study(run) == pytest.approx(2.0)


def test_joint_throughput_is_measured_with_all_handlers() -> None:
    (run,) = list(STUDY_PLAN.iter_policy_runs("solo"))[-1].runs
    requests = STUDY_PLAN.make_requests(run)
    assert (run.concurrency, len(requests), {request.output_tokens for request in requests}) == (8, 16, {75})
    assert STUDY_PLAN.make_router_settings(run)["recompute"]


def test_level_is_a_multiple_of_the_unbatched_rate() -> None:
    run = StudyRun("sweep", "simulated", "poisson", "mixed", level=4.0)
    requests = STUDY_PLAN.make_requests(run)
    assert len(requests) == 160
    assert len(requests) / requests[-1].at == pytest.approx(4.0 / SERVER_SPEED.mean_request_seconds, rel=0.3)
    assert run.concurrency is None


def test_every_user_sends_several_requests() -> None:
    run = StudyRun("users", "simulated", "closed", "mixed", level=32)
    assert (run.concurrency, len(STUDY_PLAN.make_requests(run))) == (32, 192)


def test_cache_size_is_part_of_the_server_settings() -> None:
    shape = replace(STUDY_PLAN.shape, router_settings={"max_batch_total_tokens": 4096})
    settings = replace(STUDY_PLAN, shape=shape).make_router_settings(
        StudyRun("sweep", "tiny", "poisson", "static-1", level=1.0))
    assert settings["max_batch_total_tokens"] == 4096
    assert settings["static_window_ms"] == pytest.approx(1e3 * SERVER_SPEED.mean_request_seconds)
