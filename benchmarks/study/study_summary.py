"""Figures of all runs for summary.json, with bands over seeds, computed from raw records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from math import ceil, isfinite, nan
from statistics import fmean
from typing import Any

from benchmarks.study.compared_policies import (
    DYNAMIC_POLICY,
    MIXED_POLICY,
    NONE_POLICY,
    is_static_policy,
    sort_policies,
)
from benchmarks.study.plan import (
    COMPAT_PART,
    SWEEP_PART,
    SWEET_SPOT_PART,
    USERS_PART,
    WORKLOAD_PART,
    SoloCalibration,
    StudyRun,
)
from benchmarks.study.run_metrics import (
    USERS_SLOWDOWN,
    CompletedRequest,
    compute_closed_loop_metrics,
    compute_fixed_load_metrics,
    compute_open_loop_metrics,
    compute_solo_calibration,
    list_completed_requests,
    mean_latency_by_tokens,
    should_stop_runs,
)
from benchmarks.study.run_record_store import RunRecords
from benchmarks.study.statistics import (
    ConfidenceBand,
    RegressionLine,
    find_crossing,
    find_first_reaching,
    fit_line,
    mean_by_key,
)

FiguresDict = dict[str, Any]
FiguresByLevel = dict[float, dict[str, ConfidenceBand]]  # figures by level
NEAR_PEAK_SHARE = 0.9  # of a throughput: within 10 %
LARGEST_REQUEST_TOKENS = 145  # most tokens of a request in the study's figures
REQUESTS_PER_RANGE = 4  # requests of a seed, about, in a range of tokens over which latencies are averaged
MIN_RANGES, MAX_RANGES = 4, 15


def summarize_study(all_records: Sequence[RunRecords]) -> FiguresDict:
    """Return all figures; first those of the study's mode, of the first shape that has them."""
    shapes = list(dict.fromkeys(run_records.run.shape for run_records in all_records))
    figures_by_shape = {shape: summarize_model([run_records for run_records in all_records
                                                if run_records.run.shape == shape]) for shape in shapes}
    compat_figures: FiguresDict = next((one[COMPAT_PART] for one in figures_by_shape.values() if COMPAT_PART in one),
                                       {})
    ratio, correlations = (compat_figures.get(name, ConfidenceBand.from_values(())) for name in (
        "continuous_mean_latency_ratio", "continuous_latency_correlation_of_seeds"))
    return {"continuous_latency_correlation": compat_figures.get("continuous_latency_correlation", nan),
            "continuous_mean_latency_ratio": ratio.mean, "continuous_latency_correlation_of_seeds": correlations.values,
            "failed": count_failed_requests(all_records), "shapes": figures_by_shape}


def count_failed_requests(all_records: Sequence[RunRecords]) -> dict[str, int]:
    """Return the number of failed requests by run; these count in no other figure."""
    counts = {f"{run_records.run.part}/{run_records.run.name}": sum(bool(record.error)
                                                                    for record in run_records.records)
              for run_records in all_records}
    return {name: count for name, count in counts.items() if count}


def summarize_model(all_records: Sequence[RunRecords]) -> FiguresDict:
    server_speed = compute_solo_calibration(all_records)
    all_records = [run_records for run_records in all_records if server_speed.is_known_for(run_records.run.part)]
    parts = {part: [run_records for run_records in all_records if run_records.run.part == part]
             for part in (COMPAT_PART, WORKLOAD_PART, USERS_PART)}
    shape_figures: FiguresDict = {}
    if parts[COMPAT_PART]:
        shape_figures[COMPAT_PART] = summarize_reproduction(parts[COMPAT_PART], server_speed)
    if parts[WORKLOAD_PART]:
        shape_figures[WORKLOAD_PART] = {name: summarize_policies(runs, server_speed) for name, runs in group_records(
            parts[WORKLOAD_PART], lambda run: run.workload).items()}
    if sweep_records := [run_records for run_records in all_records
                         if run_records.run.part in (SWEEP_PART, SWEET_SPOT_PART)]:
        shape_figures[SWEEP_PART] = summarize_sweep(sweep_records, server_speed)
    if parts[USERS_PART]:
        shape_figures[USERS_PART] = summarize_users(parts[USERS_PART], server_speed)
    return shape_figures


def group_records(all_records: Iterable[RunRecords], get_key: Callable[[StudyRun], Any]) -> dict[Any, list[RunRecords]]:
    groups: dict[Any, list[RunRecords]] = {}
    for run_records in all_records:
        groups.setdefault(get_key(run_records.run), []).append(run_records)
    return groups


def group_by_seed(all_records: Iterable[RunRecords]) -> dict[int, list[RunRecords]]:
    return group_records(all_records, lambda run: run.seed)


def group_by_policy(all_records: Iterable[RunRecords]) -> dict[str, list[RunRecords]]:
    groups = group_records(all_records, lambda run: run.policy)
    return {policy: groups[policy] for policy in sort_policies(groups)}


def compute_bands(figures_of_seeds: Sequence[Mapping[str, float]]) -> dict[str, ConfidenceBand]:
    """Return the band of each figure over the seeds."""
    return {name: ConfidenceBand.from_values(one[name] for one in figures_of_seeds) for name in figures_of_seeds[0]}


def summarize_policies(all_records: Sequence[RunRecords], server_speed: SoloCalibration) -> FiguresDict:
    """Return the figures of each policy, and its latencies by tokens."""
    completed_by_policy = {policy: [list_completed_requests(run_records, server_speed) for run_records in runs]
                           for policy, runs in group_by_policy(all_records).items()}
    return {policy: compute_bands(list(map(compute_fixed_load_metrics, seeds)))
            | {"latency_by_tokens": compute_latency_by_tokens(seeds),
               "latency_by_range": compute_latency_by_length_bin(seeds)}
            for policy, seeds in completed_by_policy.items()}


def compute_latency_by_tokens(completed_by_seed: Sequence[Sequence[CompletedRequest]]) -> dict[float, ConfidenceBand]:
    latencies_of_seeds = [mean_latency_by_tokens(completed) for completed in completed_by_seed]
    lengths = sorted({length for latencies in latencies_of_seeds for length in latencies})
    return {length: ConfidenceBand.from_values(latencies[length] for latencies in latencies_of_seeds
                                               if length in latencies) for length in lengths}


def compute_latency_by_length_bin(completed_by_seed: Sequence[Sequence[CompletedRequest]]) -> dict[float,
                                                                                                   ConfidenceBand]:
    """Return latencies by the mean number of tokens of each range: many seeds have no request of a given length."""
    width = choose_length_bin_width(completed_by_seed)
    latencies_of_seeds = [mean_by_key(((answer.num_tokens - 1) // width, answer.latency_seconds)
                                      for answer in completed) for completed in completed_by_seed]
    mean_tokens_by_range = mean_by_key(((answer.num_tokens - 1) // width, answer.num_tokens)
                                       for completed in completed_by_seed for answer in completed)
    return {mean_tokens: ConfidenceBand.from_values(latencies[number] for latencies in latencies_of_seeds
                                                    if number in latencies)
            for number, mean_tokens in mean_tokens_by_range.items()}


def choose_length_bin_width(completed_by_seed: Sequence[Sequence[CompletedRequest]]) -> int:
    """Return the width of a range in tokens; 1 if there are few different lengths."""
    lengths = {answer.num_tokens for completed in completed_by_seed for answer in completed}
    num_ranges = min(max(min(map(len, completed_by_seed)) // REQUESTS_PER_RANGE, MIN_RANGES), MAX_RANGES)
    return 1 if len(lengths) <= num_ranges else ceil(max(lengths) / num_ranges)


# -- the study's mode

def summarize_reproduction(all_records: Sequence[RunRecords], server_speed: SoloCalibration) -> FiguresDict:
    policy_figures = summarize_policies(all_records, server_speed)
    compat_figures: FiguresDict = {"policies": policy_figures}
    comparable_seeds = list(filter(has_dynamic_and_others, group_by_seed(all_records).values()))
    if not comparable_seeds:
        return compat_figures
    lines = {name: fit_latency_by_tokens(one["latency_by_tokens"]) for name, one in policy_figures.items()}
    return compat_figures | {
        "continuous_latency_correlation": lines[DYNAMIC_POLICY].correlation,  # of means over seeds
        "continuous_latency_correlation_of_seeds": policy_figures[DYNAMIC_POLICY]["correlation"],
        "continuous_mean_latency_ratio": ConfidenceBand.from_values(compute_dynamic_latency_ratio(runs, server_speed)
                                                                    for runs in comparable_seeds),
        "crossover": min(filter(isfinite, (find_crossing(lines[DYNAMIC_POLICY], line) for name, line in lines.items()
                                           if name != DYNAMIC_POLICY)), default=nan) / LARGEST_REQUEST_TOKENS}


def has_dynamic_and_others(seed_records: Sequence[RunRecords]) -> bool:
    """Return whether a seed has dynamic batching and other policies; an interrupted one may lack some."""
    policy_names = {run_records.run.policy for run_records in seed_records}
    return DYNAMIC_POLICY in policy_names and len(policy_names) > 1


def compute_dynamic_latency_ratio(seed_records: Sequence[RunRecords], server_speed: SoloCalibration) -> float:
    """Return the mean latency of dynamic batching divided by the mean of the other policies', in one seed."""
    latency_by_policy = {run_records.run.policy: compute_fixed_load_metrics(
        list_completed_requests(run_records, server_speed))["mean_latency"] for run_records in seed_records}
    return latency_by_policy.pop(DYNAMIC_POLICY) / fmean(latency_by_policy.values())


def fit_latency_by_tokens(latencies: Mapping[float, ConfidenceBand]) -> RegressionLine:
    return fit_line({length: band.mean for length, band in latencies.items()})


# -- beyond the study's mode

def summarize_sweep(all_records: Sequence[RunRecords], server_speed: SoloCalibration) -> FiguresDict:
    """Return the figures of each policy at each rate, and its highest throughput."""
    levels = {policy: compute_metrics_by_level(runs,
                                               lambda run_records: compute_open_loop_metrics(run_records, server_speed))
              for policy, runs in group_by_policy(all_records).items()}
    peaks = {policy: find_peak(figures_by_level) for policy, figures_by_level in levels.items()}
    none_peak = peaks.get(NONE_POLICY, (nan, nan))[1]
    saturated_policies = {policy: all(map(is_policy_saturated, group_by_seed(runs).values()))
                          for policy, runs in group_by_policy(all_records).items()}
    saturation = {policy: {"level": level, "tokens_per_second": tokens, "by_none": tokens / none_peak,
                           "is_full": saturated_policies[policy]} for policy, (level, tokens) in peaks.items()}
    return {"policies": levels, "saturation": saturation} | compare_with_static_peak(levels, peaks)


def is_policy_saturated(seed_records: Sequence[RunRecords]) -> bool:
    """Return whether the runs of a seed ended because the policy was saturated, not because rates were exhausted."""
    return should_stop_runs(sorted(seed_records, key=lambda run_records: run_records.run.level))


def compute_metrics_by_level(all_records: Sequence[RunRecords],
                             compute_figures: Callable[[RunRecords], Mapping[str, float]]) -> FiguresByLevel:
    records_by_level = group_records(all_records, lambda run: run.level)
    return {level: compute_bands([compute_figures(run_records) for run_records in records_by_level[level]])
            for level in sorted(records_by_level)}


def find_peak(figures_by_level: FiguresByLevel) -> tuple[float, float]:
    """Return the level with the highest throughput, and that throughput."""
    throughput_by_level = {level: one["tokens_per_second"].mean
                           for level, one in select_levels_of_all_seeds(figures_by_level).items()}
    best = max(throughput_by_level, key=lambda level: throughput_by_level[level])
    return best, throughput_by_level[best]


def select_levels_of_all_seeds(figures_by_level: FiguresByLevel) -> FiguresByLevel:
    """Return the levels that every seed reached.

    Only seeds that kept up continue at the next level, so the last levels have only the luckiest seeds."""
    seeds_by_level = {level: len(one["tokens_per_second"].values) for level, one in figures_by_level.items()}
    return {level: one for level, one in figures_by_level.items() if seeds_by_level[level]
            == max(seeds_by_level.values())}


def compare_with_static_peak(levels_by_policy: Mapping[str, FiguresByLevel],
                             peaks: Mapping[str, tuple[float, float]]) -> FiguresDict:
    """Return the latency of continuous batching at nearly the highest throughput of static groups.

    Of all its settings and rates with at least NEAR_PEAK_SHARE of that throughput, the one with the lowest latency
    counts."""
    static_policies = [policy for policy in levels_by_policy if is_static_policy(policy)]
    if not static_policies or MIXED_POLICY not in levels_by_policy:
        return {}
    best_static_policy = max(static_policies, key=lambda policy: peaks[policy][1])
    level, static_throughput = peaks[best_static_policy]
    static_latency = levels_by_policy[best_static_policy][level]["latency_p50"].mean
    continuous_candidates = [(figures["latency_p50"].mean, policy, figures["tokens_per_second"].mean, rate)
                             for policy in levels_by_policy if policy not in (*static_policies, NONE_POLICY)
                             for rate, figures in select_levels_of_all_seeds(levels_by_policy[policy]).items()
                             if figures["tokens_per_second"].mean >= NEAR_PEAK_SHARE * static_throughput]
    latency, policy, tokens, rate = min(continuous_candidates, default=(nan, MIXED_POLICY, nan, nan))
    return {"static_peak": {"policy": best_static_policy, "level": level, "tokens_per_second": static_throughput,
                            "latency_p50": static_latency, "continuous_policy": policy, "continuous_level": rate,
                            "continuous_tokens_per_second": tokens, "continuous_latency_p50": latency,
                            "latency_ratio": latency / static_latency}}


def summarize_users(all_records: Sequence[RunRecords], server_speed: SoloCalibration) -> FiguresDict:
    """Return how many users are served at no more than twice the latency per token of a single user.

    The single user is of the same seed, with the policy that is fastest for one."""
    solo_seconds = compute_single_user_normalized_latencies(all_records, server_speed)

    def compute_figures(run_records: RunRecords) -> dict[str, float]:
        run_figures = compute_closed_loop_metrics(run_records, server_speed)
        return run_figures | {"by_alone": run_figures["per_token_p50"] / solo_seconds[run_records.run.seed]}

    records_by_policy = group_by_policy(all_records)
    users_by_policy = {policy: ConfidenceBand.from_values(find_users_at_slowdown(
        [(run_records.run.level, compute_figures(run_records)["by_alone"]) for run_records in each])
                                                          for each in group_by_seed(runs).values())
                       for policy, runs in records_by_policy.items()}
    none_users = users_by_policy[NONE_POLICY].mean if NONE_POLICY in users_by_policy else nan
    return {"policies": {policy: compute_metrics_by_level(runs, compute_figures)
                         for policy, runs in records_by_policy.items()},
            "alone_per_token": fmean(solo_seconds.values()), "at_twice": users_by_policy,
            "by_none": {policy: band.mean / none_users for policy, band in users_by_policy.items()}}


def compute_single_user_normalized_latencies(all_records: Sequence[RunRecords],
                                             server_speed: SoloCalibration) -> dict[int, float]:
    """Return the seconds per token of a single user by seed; seeds without such a run get the mean of the others."""
    single_user_records = group_by_seed([run_records for run_records in all_records if run_records.run.level == 1])
    seconds_by_seed = {seed: min(compute_closed_loop_metrics(run_records, server_speed)["per_token_p50"]
                                 for run_records in runs) for seed, runs in single_user_records.items()}
    return dict.fromkeys(group_by_seed(all_records), fmean(seconds_by_seed.values())) | seconds_by_seed


def find_users_at_slowdown(points: Iterable[tuple[float, float]]) -> float:
    """Return the number of users at which latency is USERS_SLOWDOWN times that of one, or the most that were tried.

    Points are numbers of users and latencies relative to that of one user."""
    ordered = sorted(points)
    num_users = find_first_reaching(ordered, USERS_SLOWDOWN)
    return num_users if isfinite(num_users) else ordered[-1][0]


# -- as JSON

def to_json_value(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): to_json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return list(map(to_json_value, value))
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    return value
