"""summary.json: what all runs amount to, with bands over seeds. Pure arithmetic from raw records."""

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
from benchmarks.study.raw import Taken

Told = dict[str, Any]
Levels = dict[float, dict[str, Band]]  # figures by level
NEAR = 0.9  # of a throughput: within 10 %
LARGEST = 145  # tokens, of the study's figures
IN_RANGE = 4  # requests of a seed, about, in a range of tokens whose latencies are taken together
FEWEST_RANGES, MOST_RANGES = 4, 15


def summary(takens: Sequence[Taken]) -> Told:
    """The figures of the study's mode first, of the first shape that has them."""
    shapes = list(dict.fromkeys(taken.run.shape for taken in takens))
    told = {shape: of_shape([taken for taken in takens if taken.run.shape == shape]) for shape in shapes}
    studied: Told = next((one[COMPAT] for one in told.values() if COMPAT in one), {})
    ratio, each = (studied.get(name, Band.of(())) for name in (
        "continuous_mean_latency_ratio", "continuous_latency_correlation_of_seeds"))
    return {"continuous_latency_correlation": studied.get("continuous_latency_correlation", nan),
            "continuous_mean_latency_ratio": ratio.mean, "continuous_latency_correlation_of_seeds": each.values,
            "failed": failed(takens), "shapes": told}


def failed(takens: Sequence[Taken]) -> dict[str, int]:
    """Requests that count for nothing else, by run."""
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
    """Of figures that every seed gives."""
    return {name: Band.of(one[name] for one in each) for name in each[0]}


def policies(takens: Sequence[Taken], pace: Pace) -> Told:
    """Figures of each policy, and its latencies by tokens."""
    found = {policy: [answers(taken, pace) for taken in runs] for policy, runs in by_policy(takens).items()}
    return {policy: bands(list(map(figures, seeds))) | {"latency_by_tokens": latency_by_tokens(seeds),
                                                        "latency_by_range": latency_by_range(seeds)}
            for policy, seeds in found.items()}


def latency_by_tokens(seeds: Sequence[Sequence[Answer]]) -> dict[float, Band]:
    each = [by_tokens(found) for found in seeds]
    lengths = sorted({length for found in each for length in found})
    return {length: Band.of(found[length] for found in each if length in found) for length in lengths}


def latency_by_range(seeds: Sequence[Sequence[Answer]]) -> dict[float, Band]:
    """By the mean number of tokens in each range: of a single length many seeds have no request."""
    width = width_of(seeds)
    each = [mean_by(((answer.tokens - 1) // width, answer.seconds) for answer in found) for found in seeds]
    places = mean_by(((answer.tokens - 1) // width, answer.tokens) for found in seeds for answer in found)
    return {place: Band.of(found[number] for found in each if number in found) for number, place in places.items()}


def width_of(seeds: Sequence[Sequence[Answer]]) -> int:
    """In tokens, of a range: few lengths each have their own."""
    lengths = {answer.tokens for found in seeds for answer in found}
    count = min(max(min(map(len, seeds)) // IN_RANGE, FEWEST_RANGES), MOST_RANGES)
    return 1 if len(lengths) <= count else ceil(max(lengths) / count)


# -- as the study has it

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
    """Whether a seed has dynamic batching and others beside it; an interrupted one may lack them."""
    policies = {taken.run.policy for taken in takens}
    return DYNAMIC in policies and len(policies) > 1


def ratio_to_others(takens: Sequence[Taken], pace: Pace) -> float:
    """Of mean latencies, in one seed."""
    found = {taken.run.policy: figures(answers(taken, pace))["mean_latency"] for taken in takens}
    return found.pop(DYNAMIC) / fmean(found.values())


def line_of(latencies: Mapping[float, Band]) -> Line:
    return fitted({length: band.mean for length, band in latencies.items()})


# -- beyond it

def sweep(takens: Sequence[Taken], pace: Pace) -> Told:
    """Figures of each policy at each rate, and what it can serve at most."""
    levels = {policy: at_levels(runs, lambda taken: under_load(taken, pace))
              for policy, runs in by_policy(takens).items()}
    peaks = {policy: peak(found) for policy, found in levels.items()}
    alone = peaks.get(FIXED, (nan, nan))[1]
    full = {policy: all(map(is_full, by_seed(runs).values())) for policy, runs in by_policy(takens).items()}
    most = {policy: {"level": level, "tokens_per_second": tokens, "by_none": tokens / alone, "is_full": full[policy]}
            for policy, (level, tokens) in peaks.items()}
    return {"policies": levels, "saturation": most} | beside_static(levels, peaks)


def is_full(takens: Sequence[Taken]) -> bool:
    """Whether the runs of a seed ended because they would have told nothing new, and not with the last rate."""
    return is_enough(sorted(takens, key=lambda taken: taken.run.level))


def at_levels(takens: Sequence[Taken], figures_of: Callable[[Taken], Mapping[str, float]]) -> Levels:
    found = grouped(takens, lambda run: run.level)
    return {level: bands([figures_of(taken) for taken in found[level]]) for level in sorted(found)}


def peak(levels: Levels) -> tuple[float, float]:
    """The level at which most is served, and how much."""
    served = {level: one["tokens_per_second"].mean for level, one in reached(levels).items()}
    best = max(served, key=lambda level: served[level])
    return best, served[best]


def reached(levels: Levels) -> Levels:
    """Those that every seed came to. Only seeds that kept up go on to the next level, so that the last ones have but
    the luckiest."""
    seeds = {level: len(one["tokens_per_second"].values) for level, one in levels.items()}
    return {level: one for level, one in levels.items() if seeds[level] == max(seeds.values())}


def beside_static(levels: Mapping[str, Levels], peaks: Mapping[str, tuple[float, float]]) -> Told:
    """At which latency continuous batching serves nearly as much as static groups do at most. Of all its settings and
    rates that serve so much, the one with the least latency."""
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
    """How many wait no more than twice as long for a token as one alone does, in the same seed and with the policy that
    serves one alone fastest."""
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
    """That a user alone waits for a token, by seed. One in which nobody was alone goes by the mean of the others."""
    alone = by_seed([taken for taken in takens if taken.run.level == 1])
    each = {seed: min(with_users(taken, pace)["per_token_p50"] for taken in runs) for seed, runs in alone.items()}
    return dict.fromkeys(by_seed(takens), fmean(each.values())) | each


def users_at(points: Iterable[tuple[float, float]]) -> float:
    """From users and how many times as long as alone they wait. As many as were tried at least, if that was not
    enough."""
    ordered = sorted(points)
    found = reaches(ordered, USERS_SLOWDOWN)
    return found if isfinite(found) else ordered[-1][0]


# -- as JSON

def plain(value: Any) -> Any:
    """What JSON can say: null for what is no number."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value
