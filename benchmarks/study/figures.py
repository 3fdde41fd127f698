"""Figures of all runs for summary.json, with bands over seeds, computed from raw records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from math import ceil, isfinite, nan
from statistics import fmean
from typing import Any

from benchmarks.study.arithmetic import Band, Line, crossing, fitted, mean_by, reaches
from benchmarks.study.measures import (
    USERS_SLOWDOWN,
    Answer,
    answers,
    by_tokens,
    figures,
    is_enough,
    pace_of,
    under_load,
    with_users,
)
from benchmarks.study.plan import COMPAT, SWEEP, SWEET, USERS, WORKLOAD, Pace, Run
from benchmarks.study.policies import CONTINUOUS, DYNAMIC, FIXED, in_order, is_static
from benchmarks.study.records import Taken

Told = dict[str, Any]
Levels = dict[float, dict[str, Band]]  # figures by level
NEAR = 0.9  # of a throughput: within 10 %
LARGEST = 145  # most tokens of a request in the study's figures
IN_RANGE = 4  # requests of a seed, about, in a range of tokens over which latencies are averaged
FEWEST_RANGES, MOST_RANGES = 4, 15


def summary(takens: Sequence[Taken]) -> Told:
    """Return all figures; first those of the study's mode, of the first shape that has them."""
    shapes = list(dict.fromkeys(taken.run.shape for taken in takens))
    told = {shape: of_shape([taken for taken in takens if taken.run.shape == shape]) for shape in shapes}
    studied: Told = next((one[COMPAT] for one in told.values() if COMPAT in one), {})
    ratio, each = (studied.get(name, Band.of(())) for name in (
        "continuous_mean_latency_ratio", "continuous_latency_correlation_of_seeds"))
    return {"continuous_latency_correlation": studied.get("continuous_latency_correlation", nan),
            "continuous_mean_latency_ratio": ratio.mean, "continuous_latency_correlation_of_seeds": each.values,
            "failed": failed(takens), "shapes": told}


def failed(takens: Sequence[Taken]) -> dict[str, int]:
    """Return the number of failed requests by run; these count in no other figure."""
    counts = {f"{taken.run.part}/{taken.run.name}": sum(bool(record.error) for record in taken.records)
              for taken in takens}
    return {name: count for name, count in counts.items() if count}


def of_shape(takens: Sequence[Taken]) -> Told:
    pace = pace_of(takens)
    takens = [taken for taken in takens if pace.is_known(taken.run.part)]
    parts = {part: [taken for taken in takens if taken.run.part == part] for part in (COMPAT, WORKLOAD, USERS)}
    told: Told = {}
    if parts[COMPAT]:
        told[COMPAT] = compat(parts[COMPAT], pace)
    if parts[WORKLOAD]:
        told[WORKLOAD] = {name: policies(runs, pace) for name, runs in grouped(
            parts[WORKLOAD], lambda run: run.workload).items()}
    if loaded := [taken for taken in takens if taken.run.part in (SWEEP, SWEET)]:
        told[SWEEP] = sweep(loaded, pace)
    if parts[USERS]:
        told[USERS] = users(parts[USERS], pace)
    return told


def grouped(takens: Iterable[Taken], key: Callable[[Run], Any]) -> dict[Any, list[Taken]]:
    found: dict[Any, list[Taken]] = {}
    for taken in takens:
        found.setdefault(key(taken.run), []).append(taken)
    return found


def by_seed(takens: Iterable[Taken]) -> dict[int, list[Taken]]:
    return grouped(takens, lambda run: run.seed)


def by_policy(takens: Iterable[Taken]) -> dict[str, list[Taken]]:
    found = grouped(takens, lambda run: run.policy)
    return {policy: found[policy] for policy in in_order(found)}


def bands(each: Sequence[Mapping[str, float]]) -> dict[str, Band]:
    """Return the band of each figure over the seeds."""
    return {name: Band.of(one[name] for one in each) for name in each[0]}


def policies(takens: Sequence[Taken], pace: Pace) -> Told:
    """Return the figures of each policy, and its latencies by tokens."""
    found = {policy: [answers(taken, pace) for taken in runs] for policy, runs in by_policy(takens).items()}
    return {policy: bands(list(map(figures, seeds))) | {"latency_by_tokens": latency_by_tokens(seeds),
                                                        "latency_by_range": latency_by_range(seeds)}
            for policy, seeds in found.items()}


def latency_by_tokens(seeds: Sequence[Sequence[Answer]]) -> dict[float, Band]:
    each = [by_tokens(found) for found in seeds]
    lengths = sorted({length for found in each for length in found})
    return {length: Band.of(found[length] for found in each if length in found) for length in lengths}


def latency_by_range(seeds: Sequence[Sequence[Answer]]) -> dict[float, Band]:
    """Return latencies by the mean number of tokens of each range: many seeds have no request of a given length."""
    width = width_of(seeds)
    each = [mean_by(((answer.tokens - 1) // width, answer.seconds) for answer in found) for found in seeds]
    places = mean_by(((answer.tokens - 1) // width, answer.tokens) for found in seeds for answer in found)
    return {place: Band.of(found[number] for found in each if number in found) for number, place in places.items()}


def width_of(seeds: Sequence[Sequence[Answer]]) -> int:
    """Return the width of a range in tokens; 1 if there are few different lengths."""
    lengths = {answer.tokens for found in seeds for answer in found}
    count = min(max(min(map(len, seeds)) // IN_RANGE, FEWEST_RANGES), MOST_RANGES)
    return 1 if len(lengths) <= count else ceil(max(lengths) / count)


# -- the study's mode

def compat(takens: Sequence[Taken], pace: Pace) -> Told:
    each = policies(takens, pace)
    told: Told = {"policies": each}
    whole = list(filter(is_compared, by_seed(takens).values()))
    if not whole:
        return told
    lines = {name: line_of(one["latency_by_tokens"]) for name, one in each.items()}
    return told | {
        "continuous_latency_correlation": lines[DYNAMIC].correlation,  # of means over seeds
        "continuous_latency_correlation_of_seeds": each[DYNAMIC]["correlation"],
        "continuous_mean_latency_ratio": Band.of(ratio_to_others(runs, pace) for runs in whole),
        "crossover": min(filter(isfinite, (crossing(lines[DYNAMIC], line) for name, line in lines.items()
                                           if name != DYNAMIC)), default=nan) / LARGEST}


def is_compared(takens: Sequence[Taken]) -> bool:
    """Return whether a seed has dynamic batching and other policies; an interrupted one may lack some."""
    policies = {taken.run.policy for taken in takens}
    return DYNAMIC in policies and len(policies) > 1


def ratio_to_others(takens: Sequence[Taken], pace: Pace) -> float:
    """Return the mean latency of dynamic batching divided by the mean of the other policies', in one seed."""
    found = {taken.run.policy: figures(answers(taken, pace))["mean_latency"] for taken in takens}
    return found.pop(DYNAMIC) / fmean(found.values())


def line_of(latencies: Mapping[float, Band]) -> Line:
    return fitted({length: band.mean for length, band in latencies.items()})


# -- beyond the study's mode

def sweep(takens: Sequence[Taken], pace: Pace) -> Told:
    """Return the figures of each policy at each rate, and its highest throughput."""
    levels = {policy: at_levels(runs, lambda taken: under_load(taken, pace))
              for policy, runs in by_policy(takens).items()}
    peaks = {policy: peak(found) for policy, found in levels.items()}
    alone = peaks.get(FIXED, (nan, nan))[1]
    full = {policy: all(map(is_full, by_seed(runs).values())) for policy, runs in by_policy(takens).items()}
    most = {policy: {"level": level, "tokens_per_second": tokens, "by_none": tokens / alone, "is_full": full[policy]}
            for policy, (level, tokens) in peaks.items()}
    return {"policies": levels, "saturation": most} | beside_static(levels, peaks)


def is_full(takens: Sequence[Taken]) -> bool:
    """Return whether the runs of a seed ended because the policy was saturated, not because rates were exhausted."""
    return is_enough(sorted(takens, key=lambda taken: taken.run.level))


def at_levels(takens: Sequence[Taken], figures_of: Callable[[Taken], Mapping[str, float]]) -> Levels:
    found = grouped(takens, lambda run: run.level)
    return {level: bands([figures_of(taken) for taken in found[level]]) for level in sorted(found)}


def peak(levels: Levels) -> tuple[float, float]:
    """Return the level with the highest throughput, and that throughput."""
    served = {level: one["tokens_per_second"].mean for level, one in reached(levels).items()}
    best = max(served, key=lambda level: served[level])
    return best, served[best]


def reached(levels: Levels) -> Levels:
    """Return the levels that every seed reached.

    Only seeds that kept up continue at the next level, so the last levels have only the luckiest seeds."""
    seeds = {level: len(one["tokens_per_second"].values) for level, one in levels.items()}
    return {level: one for level, one in levels.items() if seeds[level] == max(seeds.values())}


def beside_static(levels: Mapping[str, Levels], peaks: Mapping[str, tuple[float, float]]) -> Told:
    """Return the latency of continuous batching at nearly the highest throughput of static groups.

    Of all its settings and rates with at least NEAR of that throughput, the one with the lowest latency counts."""
    groups = [policy for policy in levels if is_static(policy)]
    if not groups or CONTINUOUS not in levels:
        return {}
    best = max(groups, key=lambda policy: peaks[policy][1])
    level, most = peaks[best]
    theirs = levels[best][level]["latency_p50"].mean
    ours = [(found["latency_p50"].mean, policy, found["tokens_per_second"].mean, rate)
            for policy in levels if policy not in (*groups, FIXED) for rate, found in reached(levels[policy]).items()
            if found["tokens_per_second"].mean >= NEAR * most]
    latency, policy, tokens, rate = min(ours, default=(nan, CONTINUOUS, nan, nan))
    return {"static_peak": {
        "policy": best, "level": level, "tokens_per_second": most, "latency_p50": theirs, "continuous_policy": policy,
        "continuous_level": rate, "continuous_tokens_per_second": tokens, "continuous_latency_p50": latency,
        "latency_ratio": latency / theirs}}


def users(takens: Sequence[Taken], pace: Pace) -> Told:
    """Return how many users are served at no more than twice the latency per token of a single user.

    The single user is of the same seed, with the policy that is fastest for one."""
    alone = seconds_of_one(takens, pace)

    def figures_of(taken: Taken) -> dict[str, float]:
        found = with_users(taken, pace)
        return found | {"by_alone": found["per_token_p50"] / alone[taken.run.seed]}

    found = by_policy(takens)
    served = {policy: Band.of(users_at([(taken.run.level, figures_of(taken)["by_alone"]) for taken in each])
                              for each in by_seed(runs).values()) for policy, runs in found.items()}
    fixed = served[FIXED].mean if FIXED in served else nan
    return {"policies": {policy: at_levels(runs, figures_of) for policy, runs in found.items()},
            "alone_per_token": fmean(alone.values()), "at_twice": served,
            "by_none": {policy: band.mean / fixed for policy, band in served.items()}}


def seconds_of_one(takens: Sequence[Taken], pace: Pace) -> dict[int, float]:
    """Return the seconds per token of a single user by seed; seeds without such a run get the mean of the others."""
    alone = by_seed([taken for taken in takens if taken.run.level == 1])
    each = {seed: min(with_users(taken, pace)["per_token_p50"] for taken in runs) for seed, runs in alone.items()}
    return dict.fromkeys(by_seed(takens), fmean(each.values())) | each


def users_at(points: Iterable[tuple[float, float]]) -> float:
    """Return the number of users at which latency is USERS_SLOWDOWN times that of one, or the most that were tried.

    Points are numbers of users and latencies relative to that of one user."""
    ordered = sorted(points)
    found = reaches(ordered, USERS_SLOWDOWN)
    return found if isfinite(found) else ordered[-1][0]


# -- as JSON

def plain(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value
