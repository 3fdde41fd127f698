import json
from functools import cache
from math import inf, isnan, nan
from typing import Any

import pytest
from support.fake_study import SCOPE, study

from benchmarks.bench.load.record import Ask, Record
from benchmarks.study.arithmetic import Band
from benchmarks.study.figures import failed, latency_by_range, peak, plain, summary, users, users_at, width_of
from benchmarks.study.measures import Answer
from benchmarks.study.plan import Pace, Run
from benchmarks.study.records import Taken

pytestmark = pytest.mark.slow
PACE = Pace(*[((1.0, 1.0),)] * 3)


@cache
def told() -> dict[str, Any]:
    return summary(study(SCOPE))


def test_the_summary_leads_with_the_figures_of_the_studys_mode() -> None:
    """Without queueing, latency is linear in the number of tokens."""
    assert list(told())[:2] == ["continuous_latency_correlation", "continuous_mean_latency_ratio"]
    assert told()["continuous_latency_correlation"] == pytest.approx(1)
    assert 0 < told()["continuous_mean_latency_ratio"] < 0.7


def test_every_part_is_there_and_only_if_it_was_measured() -> None:
    assert list(told()["shapes"]["simulated"]) == ["compat", "workload", "sweep", "users"]
    solo = summary([taken for taken in study(SCOPE) if taken.run.part == "solo"])
    assert solo["shapes"] == {"simulated": {}}
    assert isnan(solo["continuous_latency_correlation"])


def test_every_seed_gives_a_value_and_together_a_band() -> None:
    latency = told()["shapes"]["simulated"]["compat"]["policies"]["nobatch"]["mean_latency"]
    assert len(latency.values) == 2
    assert latency.low < latency.mean < latency.high


def test_the_studys_mode_pairs_what_is_of_the_same_seed() -> None:
    """An interrupted study lacks some policies of a seed; summarising it used to fail."""
    takens = study(SCOPE)
    cut = [taken for taken in takens if (taken.run.part, taken.run.policy, taken.run.seed) != ("compat", "dynamic", 0)]
    ratio = summary(takens)["shapes"]["simulated"]["compat"]["continuous_mean_latency_ratio"]
    assert summary(cut)["shapes"]["simulated"]["compat"]["continuous_mean_latency_ratio"].values == ratio.values[1:]
    alone = [taken for taken in takens if taken.run.part == "solo" or taken.run.policy == "dynamic"]
    assert list(summary(alone)["shapes"]["simulated"]["compat"]) == ["policies"]


@pytest.mark.parametrize(("missing", "parts"), [
    ("short-none", []), ("short-nobatch", ["workload", "sweep", "users"]), ("long-none", [])])
def test_what_cannot_be_judged_yet_is_left_out(missing: str, parts: list[str]) -> None:
    """The study was stopped before all solo requests were measured."""
    takens = [taken for taken in study(SCOPE) if taken.run.part != "solo" or missing not in taken.run.name]
    assert list(summary(takens)["shapes"]["simulated"]) == parts


def test_requests_that_failed_are_counted() -> None:
    run = Run("users", "simulated", "closed", "mixed", 0, 4.0)
    records = [Record(Ask(0, "", 8), 0.0, 1.0, error=error) for error in ("", "503", "503")]
    assert failed([Taken(run, {}, {}, records)]) == {"users/simulated-closed-mixed-at4-seed0": 2}


def test_the_most_that_is_served_is_of_a_rate_that_all_seeds_came_to() -> None:
    """At a higher rate only the luckiest seeds remain, since the others saturate earlier."""
    levels = {5.0: {"tokens_per_second": Band.of([10.0, 12.0])}, 12.0: {"tokens_per_second": Band.of([15.0])}}
    assert peak(levels) == (5.0, 11.0)


def test_saturation_is_told_beside_that_of_one_at_a_time() -> None:
    most = told()["shapes"]["simulated"]["sweep"]["saturation"]
    assert most["none"]["by_none"] == 1
    assert most["none"]["tokens_per_second"] == pytest.approx(100, rel=0.1)  # a hundredth of a second a token
    assert (most["none"]["is_full"], most["mixed"]["is_full"]) == (True, False)
    assert most["mixed"]["level"] == 16
    assert most["mixed"]["by_none"] > 5


def test_continuous_batching_stands_beside_the_best_static_groups() -> None:
    beside = told()["shapes"]["simulated"]["sweep"]["static_peak"]
    assert beside["policy"] in {"static", "static-1"}
    assert beside["continuous_tokens_per_second"] >= 0.9 * beside["tokens_per_second"]
    assert beside["latency_ratio"] < 1
    assert beside["continuous_policy"] in {"mixed", "pause", "batch-4", "stall-50"}


def test_users_are_counted_at_twice_the_latency_of_one_alone() -> None:
    found = told()["shapes"]["simulated"]["users"]
    assert found["alone_per_token"] == pytest.approx(0.01)
    assert found["at_twice"]["mixed"].mean > found["at_twice"]["none"].mean
    assert found["by_none"]["none"] == 1


def test_users_that_were_never_too_many_are_as_many_as_were_tried() -> None:
    assert users_at([(1.0, 1.0), (16.0, 1.9)]) == 16
    assert users_at([(8.0, 3.0), (1.0, 1.0)]) == 4.5


def asked_by(users: float, seed: int, seconds: float, policy: str = "mixed") -> Taken:
    """Return a run whose answers of eight tokens take `seconds` each."""
    records = [Record(Ask(0, "", 8), number * seconds, (number + 1) * seconds) for number in range(2)]
    return Taken(Run("users", "simulated", "closed", policy, seed, users), {}, {}, records)


def test_users_wait_twice_as_long_as_one_alone_did_in_the_same_seed() -> None:
    """The baseline used to be the mean over seeds: where the machine was faster, latency never seemed to double."""
    runs = [asked_by(1, 0, 1.0), asked_by(9, 0, 3.0), asked_by(1, 1, 2.0), asked_by(9, 1, 6.0)]
    found = users(runs, PACE)
    assert found["at_twice"]["mixed"].values == (5.0, 5.0)
    assert (found["alone_per_token"], found["policies"]["mixed"][9]["by_alone"].values) == (0.1875, (3.0, 3.0))


def test_a_seed_in_which_nobody_was_alone_goes_by_the_others() -> None:
    found = users([asked_by(1, 0, 1.0), asked_by(9, 0, 3.0), asked_by(9, 1, 1.5)], PACE)
    assert found["at_twice"]["mixed"].values == (5.0, 9.0)


def test_who_serves_one_alone_slowly_is_not_judged_by_that() -> None:
    found = users([asked_by(1, 0, 1.0), asked_by(1, 0, 4.0, "pause")], PACE)
    assert found["policies"]["pause"][1]["by_alone"].mean == 4.0


def test_latencies_are_taken_together_in_ranges_of_tokens() -> None:
    seeds = [[answer(1, 1.0), answer(40, 3.0)], [answer(2, 1.0), answer(9, 2.0), answer(10, 4.0), answer(10, 5.0)]]
    assert {place: band.values for place, band in latency_by_range(seeds).items()} == {6.4: (1.0, 3.0), 40: (3.0,)}


def test_few_lengths_are_not_taken_together() -> None:
    seeds = [[answer(1, 1.0), answer(25, 3.0)], [answer(1, 2.0), answer(100, 4.0)]]
    assert {place: band.values for place, band in latency_by_range(seeds).items()} == {
        1: (1.0, 2.0), 25: (3.0,), 100: (4.0,)}


def test_the_more_requests_a_seed_has_the_finer_are_the_ranges() -> None:
    widths = [width_of([[answer(1 + number % 100, 1.0) for number in range(count)]]) for count in (10, 40, 400)]
    assert widths == [3, 4, 7]


def answer(tokens: int, seconds: float) -> Answer:
    return Answer(tokens, seconds, seconds, 1.0, None)


def test_what_is_no_number_is_null_in_json() -> None:
    text = json.dumps(plain({"band": Band(1.0, None, None, (1.0,)), 0.5: (nan, inf, 3), "words": "x"}), allow_nan=False)
    assert json.loads(text) == {"band": {"mean": 1.0, "low": None, "high": None, "values": [1.0]},
                                "0.5": [None, None, 3], "words": "x"}
    json.dumps(plain(told()), allow_nan=False)
