"""The report of a run: requests by dialect and end, faults with their recovery, gaps, memory, findings."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.chaos.fault_plan import FAULT_KINDS
from support.chaos.faults import FaultRecord
from support.chaos.load import RequestRecord
from support.chaos.watch import Sample, compute_slope

MEBIBYTE = 2 ** 20
# Caches and records of the last five minutes fill meanwhile; a soak is judged by its slope, too.
MAX_GROWTH_SHARE, MAX_GROWTH_BYTES = 0.10, 32 * MEBIBYTE
MAX_SLOPE_MIB_PER_HOUR = 8.0
MIN_JUDGED_SECONDS, MIN_SLOPE_SECONDS = 60.0, 3600.0
MAX_DESCRIPTOR_GROWTH = 8
MAX_SHOWN_PROBLEMS = 40


@dataclass(slots=True)
class RunReport:
    """What a run with one number of shards has shown; it passes if there are no findings."""

    num_shard: int
    seed: int
    seconds: float
    requests: dict[str, dict[str, int]]
    errors: dict[str, int]
    faults: dict[str, dict[str, Any]]
    longest_gap_seconds: float
    memory: dict[str, dict[str, float]]
    samples: dict[str, list[tuple[float, int, float, int, int]]]  # seconds, pid, MiB, descriptors, threads
    findings: list[str] = field(default_factory=list)

    def format(self) -> str:
        """Return the report as text tables."""
        ends = sorted({end for counts in self.requests.values() for end in counts})
        lines = [f"{self.num_shard} shard(s), seed {self.seed}, {self.seconds:.0f} s", "",
                 format_row("requests", *ends),
                 *(format_row(dialect, *(counts.get(end, 0) for end in ends))
                   for dialect, counts in sorted(self.requests.items())), "",
                 format_row("faults", "count", "alone", "median s", "worst s"),
                 *(format_row(kind, row["count"], row["alone"], row["median"], row["worst"])
                   for kind, row in sorted(self.faults.items())), "",
                 format_row("memory", *(names := ["start MiB", "end MiB", "MiB/h", "descriptors", "threads"])),
                 *(format_row(role, *(row[name] for name in names)) for role, row in self.memory.items()), "",
                 f"longest gap of a stream that was completed: {self.longest_gap_seconds:.1f} s", "",
                 *(f"{count} x {error}" for error, count in self.errors.items()), "",
                 f"{len(self.findings)} findings", *(f"- {finding}" for finding in self.findings[:MAX_SHOWN_PROBLEMS])]
        return "\n".join(lines)


def format_row(name: str, *cells: Any) -> str:
    return f"{name:<24}" + "".join(f"{'-' if cell is None else cell!s:>14}" for cell in cells)


def count_requests(records: Sequence[RequestRecord]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record.request.dialect][record.end] += 1
    return {dialect: dict(counter) for dialect, counter in counts.items()}


def set_recovery_times(faults: Sequence[FaultRecord], probe_times: Sequence[tuple[float, float]]) -> None:
    """Set how long after its beginning each fault was over: when a probe that was sent later was answered."""
    for record in faults:
        answered = [answered_at for sent_at, answered_at in probe_times if sent_at >= record.began_at]
        record.recovered_after = min(answered) - record.began_at if answered else None


def is_alone(record: FaultRecord, faults: Sequence[FaultRecord]) -> bool:
    """Return whether no other fault that stops steps was under way between a fault's beginning and its recovery."""
    end = record.began_at + (record.recovered_after or 0.0)
    return not any(FAULT_KINDS[other.fault.kind].stops_steps and other is not record and other.has_victim
                   and other.began_at <= end
                   and other.began_at + max(other.fault.seconds, other.recovered_after or 0.0) >= record.began_at
                   for other in faults)


def summarize_faults(faults: Sequence[FaultRecord]) -> dict[str, dict[str, Any]]:
    """Return for each kind how often it happened, and the recovery times of those that happened alone."""
    times: dict[str, list[float]] = defaultdict(list)
    counts = Counter(record.fault.kind for record in faults if record.has_victim)
    for record in faults:
        if record.has_victim and record.recovered_after is not None and is_alone(record, faults):
            times[record.fault.kind].append(record.recovered_after)
    return {kind: {"count": count, "alone": len(times[kind]),
                   "median": round(statistics.median(times[kind]), 2) if times[kind] else None,
                   "worst": round(max(times[kind]), 2) if times[kind] else None} for kind, count in counts.items()}


def select_last_process(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.use.pid == samples[-1].use.pid]


def summarize_memory(samples_by_role: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Return for each role what its last process held after a third of its life, and at its end. The slope is that of
    the second half: caches are full by then."""
    rows = {}
    for role, samples in samples_by_role.items():
        warm = (life := select_last_process(samples))[len(life) // 3:]
        first, last = warm[0], warm[-1]
        rows[role] = {
            "start MiB": round(first.use.rss_bytes / MEBIBYTE, 1), "end MiB": round(last.use.rss_bytes / MEBIBYTE, 1),
            "MiB/h": round(compute_slope([(one.at, one.use.rss_bytes / MEBIBYTE)
                                          for one in life[len(life) // 2:]]), 1),
            "descriptors": last.use.num_descriptors - first.use.num_descriptors,
            "threads": last.use.num_threads - first.use.num_threads,
            "seconds": round(last.at - first.at, 1)}
    return rows


def list_samples(samples_by_role: dict[str, list[Sample]], start: float) -> dict[
        str, list[tuple[float, int, float, int, int]]]:
    return {role: [(round(sample.at - start, 1), sample.use.pid, round(sample.use.rss_bytes / MEBIBYTE, 1),
                    sample.use.num_descriptors, sample.use.num_threads) for sample in samples]
            for role, samples in samples_by_role.items()}


def judge_memory(rows: dict[str, dict[str, float]], *, is_soak: bool) -> list[str]:
    """Return a finding for each process whose memory grew. A short life is not judged, nor a slope of minutes."""
    findings = []
    for role, row in rows.items():
        if row["seconds"] < MIN_JUDGED_SECONDS:
            continue
        growth = (row["end MiB"] - row["start MiB"]) * MEBIBYTE
        if growth > max(MAX_GROWTH_BYTES, MAX_GROWTH_SHARE * row["start MiB"] * MEBIBYTE):
            findings.append(f"memory of the {role} grew from {row['start MiB']} to {row['end MiB']} MiB")
        if is_soak and row["seconds"] >= MIN_SLOPE_SECONDS / 2 and row["MiB/h"] > MAX_SLOPE_MIB_PER_HOUR:
            findings.append(f"memory of the {role} grows by {row['MiB/h']} MiB/h")
    return findings


def judge_descriptors(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return a finding for each role that has more descriptors when it is idle than it had at the start."""
    return [f"the {role} has {after[role]} descriptors, and had {before[role]}"
            for role in before if after.get(role, 0) > before[role] + MAX_DESCRIPTOR_GROWTH]


def collect_request_findings(records: Sequence[RequestRecord], start: float) -> list[str]:
    return [f"{record.request.dialect} {record.request.path} ({record.behavior}) at {record.sent_at - start:.1f} to "
            f"{record.ended_at - start:.1f} s: {'; '.join(record.problems)[:400]}"
            for record in records if record.problems]
