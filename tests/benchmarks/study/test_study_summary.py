import json
from functools import cache
from math import inf, isnan, nan
from typing import Any

import pytest
from support.fake_study import SMALL_SCOPE, run_fake_study

from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.study.plan import SoloCalibration, StudyRun
from benchmarks.study.run_metrics import CompletedRequest
from benchmarks.study.run_record_store import RunRecords
from benchmarks.study.statistics import ConfidenceBand
from benchmarks.study.study_summary import (
    choose_length_bin_width,
    compute_latency_by_length_bin,
    count_failed_requests,
    find_peak,
    find_users_at_slowdown,
    summarize_study,
    summarize_users,
    to_json_value,
)

pytestmark = pytest.mark.slow
SERVER_SPEED = SoloCalibration(*[((1.0, 1.0),)] * 3)


@cache
def get_summary() -> dict[str, Any]:
    return summarize_study(run_fake_study(SMALL_SCOPE))


def test_summary_starts_with_the_compat_figures() -> None:
    """Without queueing, latency is linear in the number of tokens."""
    assert list(get_summary())[:2] == ["continuous_latency_correlation", "continuous_mean_latency_ratio"]
    assert get_summary()["continuous_latency_correlation"] == pytest.approx(1)
    assert 0 < get_summary()["continuous_mean_latency_ratio"] < 0.7


def test_only_measured_parts_are_in_the_summary() -> None:
    assert list(get_summary()["shapes"]["simulated"]) == ["compat", "workload", "sweep", "users"]
    summary = summarize_study([run_records for run_records in run_fake_study(SMALL_SCOPE)
                               if run_records.run.part == "solo"])
    assert summary["shapes"] == {"simulated": {}}
    assert isnan(summary["continuous_latency_correlation"])


def test_every_seed_adds_a_value_to_the_band() -> None:
    latency = get_summary()["shapes"]["simulated"]["compat"]["policies"]["nobatch"]["mean_latency"]
    assert len(latency.values) == 2
    assert latency.low < latency.mean < latency.high


def test_compat_ratio_pairs_runs_of_the_same_seed() -> None:
    """An interrupted study lacks some policies of a seed; summarizing it used to fail."""
    all_records = run_fake_study(SMALL_SCOPE)
    cut = [run_records for run_records in all_records
           if (run_records.run.part, run_records.run.policy, run_records.run.seed) != ("compat", "dynamic", 0)]
    ratio = summarize_study(all_records)["shapes"]["simulated"]["compat"]["continuous_mean_latency_ratio"]
    assert (summarize_study(cut)["shapes"]["simulated"]["compat"]["continuous_mean_latency_ratio"].values
            == ratio.values[1:])
    incomplete = [run_records for run_records in all_records
                  if run_records.run.part == "solo" or run_records.run.policy == "dynamic"]
    assert list(summarize_study(incomplete)["shapes"]["simulated"]["compat"]) == ["policies"]


@pytest.mark.parametrize(("missing", "parts"), [
    ("short-none", []), ("short-nobatch", ["workload", "sweep", "users"]), ("long-none", [])])
def test_parts_without_solo_measurements_are_left_out(missing: str, parts: list[str]) -> None:
    """The study was stopped before all solo requests were measured."""
    all_records = [run_records for run_records in run_fake_study(SMALL_SCOPE) if run_records.run.part != "solo"
                   or missing not in run_records.run.name]
    assert list(summarize_study(all_records)["shapes"]["simulated"]) == parts


def test_failed_requests_are_counted() -> None:
    run = StudyRun("users", "simulated", "closed", "mixed", 0, 4.0)
    records = [RequestRecord(PlannedRequest(0, "", 8), 0.0, 1.0, error=error) for error in ("", "503", "503")]
    assert count_failed_requests([RunRecords(run, {}, {}, records)]) == {"users/simulated-closed-mixed-at4-seed0": 2}


def test_peak_is_at_a_rate_that_all_seeds_reached() -> None:
    """At a higher rate only the luckiest seeds remain, since the others saturate earlier."""
    levels = {5.0: {"tokens_per_second": ConfidenceBand.from_values([10.0, 12.0])},
              12.0: {"tokens_per_second": ConfidenceBand.from_values([15.0])}}
    assert find_peak(levels) == (5.0, 11.0)


def test_saturation_is_relative_to_no_batching() -> None:
    saturation = get_summary()["shapes"]["simulated"]["sweep"]["saturation"]
    assert saturation["none"]["by_none"] == 1
    assert saturation["none"]["tokens_per_second"] == pytest.approx(100, rel=0.1)  # a hundredth of a second a token
    assert (saturation["none"]["is_full"], saturation["mixed"]["is_full"]) == (True, False)
    assert saturation["mixed"]["level"] == 16
    assert saturation["mixed"]["by_none"] > 5


def test_continuous_batching_is_compared_with_the_best_static_policy() -> None:
    static_peak = get_summary()["shapes"]["simulated"]["sweep"]["static_peak"]
    assert static_peak["policy"] in {"static", "static-1"}
    assert static_peak["continuous_tokens_per_second"] >= 0.9 * static_peak["tokens_per_second"]
    assert static_peak["latency_ratio"] < 1
    assert static_peak["continuous_policy"] in {"mixed", "pause", "batch-4", "stall-50"}


def test_users_are_counted_at_twice_the_solo_latency() -> None:
    users_summary = get_summary()["shapes"]["simulated"]["users"]
    assert users_summary["alone_per_token"] == pytest.approx(0.01)
    assert users_summary["at_twice"]["mixed"].mean > users_summary["at_twice"]["none"].mean
    assert users_summary["by_none"]["none"] == 1


def test_users_never_too_many_are_the_largest_number_tried() -> None:
    assert find_users_at_slowdown([(1.0, 1.0), (16.0, 1.9)]) == 16
    assert find_users_at_slowdown([(8.0, 3.0), (1.0, 1.0)]) == 4.5


def make_user_run(num_users: float, seed: int, seconds: float, policy: str = "mixed") -> RunRecords:
    """Return a run whose answers of eight tokens take `seconds` each."""
    records = [RequestRecord(PlannedRequest(0, "", 8), number * seconds, (number + 1) * seconds) for number in range(2)]
    return RunRecords(StudyRun("users", "simulated", "closed", policy, seed, num_users), {}, {}, records)


def test_latency_is_compared_with_the_solo_latency_of_the_same_seed() -> None:
    """The baseline used to be the mean over seeds: where the machine was faster, latency never seemed to double."""
    runs = [make_user_run(1, 0, 1.0), make_user_run(9, 0, 3.0), make_user_run(1, 1, 2.0), make_user_run(9, 1, 6.0)]
    users_summary = summarize_users(runs, SERVER_SPEED)
    assert users_summary["at_twice"]["mixed"].values == (5.0, 5.0)
    assert (users_summary["alone_per_token"],
            users_summary["policies"]["mixed"][9]["by_alone"].values) == (0.1875, (3.0, 3.0))


def test_seed_without_a_solo_run_uses_the_other_seeds() -> None:
    users_summary = summarize_users([make_user_run(1, 0, 1.0), make_user_run(9, 0, 3.0), make_user_run(9, 1, 1.5)],
                                    SERVER_SPEED)
    assert users_summary["at_twice"]["mixed"].values == (5.0, 9.0)


def test_slow_policy_is_compared_with_the_fastest_solo_latency() -> None:
    users_summary = summarize_users([make_user_run(1, 0, 1.0), make_user_run(1, 0, 4.0, "pause")], SERVER_SPEED)
    assert users_summary["policies"]["pause"][1]["by_alone"].mean == 4.0


def test_latencies_are_grouped_in_token_ranges() -> None:
    seeds = [[make_completed_request(1, 1.0), make_completed_request(40, 3.0)],
             [make_completed_request(2, 1.0), make_completed_request(9, 2.0), make_completed_request(10, 4.0),
              make_completed_request(10, 5.0)]]
    assert {num_tokens: band.values
            for num_tokens, band in compute_latency_by_length_bin(seeds).items()} == {6.4: (1.0, 3.0), 40: (3.0,)}


def test_few_lengths_are_not_grouped() -> None:
    seeds = [[make_completed_request(1, 1.0), make_completed_request(25, 3.0)],
             [make_completed_request(1, 2.0), make_completed_request(100, 4.0)]]
    assert {num_tokens: band.values for num_tokens, band in compute_latency_by_length_bin(seeds).items()} == {
        1: (1.0, 2.0), 25: (3.0,), 100: (4.0,)}


def test_more_requests_give_finer_ranges() -> None:
    widths = [choose_length_bin_width([[make_completed_request(1 + number % 100, 1.0) for number in range(count)]])
              for count in (10, 40, 400)]
    assert widths == [3, 4, 7]


def make_completed_request(num_tokens: int, seconds: float) -> CompletedRequest:
    return CompletedRequest(num_tokens, seconds, seconds, 1.0, None)


def test_non_finite_numbers_are_null_in_json() -> None:
    text = json.dumps(to_json_value({"band": ConfidenceBand(1.0, None, None, (1.0,)), 0.5: (nan, inf, 3),
                                     "words": "x"}), allow_nan=False)
    assert json.loads(text) == {"band": {"mean": 1.0, "low": None, "high": None, "values": [1.0]},
                                "0.5": [None, None, 3], "words": "x"}
    json.dumps(to_json_value(get_summary()), allow_nan=False)
