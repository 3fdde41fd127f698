"""Counters, gauges and histograms, and their text page for Prometheus. Counters and histograms accumulate; gauges are
read when a page is made. The metrics themselves are defined in `metric_definitions.py`."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate, chain, product

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LabelValues = tuple[str, ...]  # of labels
OTHER_LABEL = "other"
LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """Definition of the metrics of one name. The label values of a counter or histogram are fixed. Or its only label is
    open: the first `max_label_values` values get a counter each, all later ones are counted under OTHER_LABEL."""

    metric_type: MetricType
    name: str
    help: str
    label_names: tuple[str, ...] = ()
    label_values: tuple[str, ...] = ()
    bucket_bounds: tuple[float, ...] = ()  # of a histogram, ascending; one more bucket has no bound
    second_label_values: tuple[str, ...] = ()  # values of the second label
    max_label_values: int = 0  # maximum number of values of an open label; 0: the values are fixed

    @property
    def initial_label_values(self) -> list[LabelValues]:
        """Label values of the metrics that exist from the beginning."""
        return ([(OTHER_LABEL,)] if self.max_label_values
                else [*product(*filter(None, (self.label_values, self.second_label_values)))])

    def sample_prefix(self, label_values: LabelValues, suffix: str = "", bucket_bound: str = "") -> str:
        """Return a sample's line up to its value."""
        pairs = [*zip(self.label_names, label_values, strict=True), *([("le", bucket_bound)] if bucket_bound else [])]
        labels = ",".join(f'{label}="{value.translate(LABEL_ESCAPES)}"' for label, value in pairs)
        return f"{self.name}{suffix}{{{labels}}} " if labels else f"{self.name}{suffix} "


class Counter:
    __slots__ = ("_sample_prefix", "value")

    def __init__(self, family: MetricDefinition, label_values: LabelValues) -> None:
        self.value = 0
        self._sample_prefix = family.sample_prefix(label_values)

    def add(self, count: int = 1) -> None:
        self.value += count

    def render_lines(self) -> Iterator[str]:
        yield f"{self._sample_prefix}{self.value}\n"


class Histogram:
    __slots__ = ("_bucket_bounds", "_bucket_counts", "_sample_prefixes", "sum")

    def __init__(self, family: MetricDefinition, label_values: LabelValues) -> None:
        self.sum = 0.0
        self._bucket_bounds = family.bucket_bounds
        self._bucket_counts = [0] * (len(family.bucket_bounds) + 1)
        self._sample_prefixes = histogram_sample_prefixes(family, label_values)

    def observe(self, value: float, times: int = 1) -> None:
        """Observe a value. This costs a binary search and two additions, however often it counts."""
        self._bucket_counts[bisect_left(self._bucket_bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self._bucket_counts)

    def estimate_quantile(self, fraction: float) -> float | None:
        """Return the bound of the bucket in which this fraction of the values ends, the highest one for values beyond
        it; None without values."""
        wanted = fraction * self.count
        if not wanted:
            return None
        return next((bound for bound, cumulative_count in zip(self._bucket_bounds, accumulate(self._bucket_counts),
                                                              strict=False) if cumulative_count >= wanted),
                    self._bucket_bounds[-1])

    def render_lines(self) -> Iterator[str]:
        *buckets, total, count = self._sample_prefixes
        for prefix, cumulative_count in zip(buckets, accumulate(self._bucket_counts), strict=True):
            yield f"{prefix}{cumulative_count}\n"
        yield f"{total}{format_number(self.sum)}\n"
        yield f"{count}{self.count}\n"


@cache
def histogram_sample_prefixes(family: MetricDefinition, label_values: LabelValues) -> list[str]:
    """Return all lines of a histogram up to their values."""
    bounds = [*map(format_number, family.bucket_bounds), "+Inf"]
    return [*(family.sample_prefix(label_values, "_bucket", bound) for bound in bounds),
            family.sample_prefix(label_values, "_sum"), family.sample_prefix(label_values, "_count")]


GaugeValues = Mapping[LabelValues, float]  # values of a gauge, by the values of its labels
NO_ALIASES: Mapping[str, str] = {}


class MetricRegistry:
    """All counters and histograms: one for each family and combination of its label values. Those with fixed label
    values exist, with 0, from the beginning."""

    def __init__(self, families: Iterable[MetricDefinition]) -> None:
        self.families = {family.name: family for family in families}
        # By the name of the family and the values of its labels.
        self._counters = {name: {values: Counter(family, values) for values in family.initial_label_values}
                          for name, family in self.families.items() if family.metric_type is MetricType.COUNTER}
        self._histograms = {name: {values: Histogram(family, values) for values in family.initial_label_values}
                            for name, family in self.families.items() if family.metric_type is MetricType.HISTOGRAM}

    def get_counter(self, family_name: str, *label_values: str) -> Counter:
        return self._counters[family_name][label_values]

    def get_counters_by_label(self, family_name: str) -> Mapping[str, Counter]:
        """Return the counters of a family by the value of its only label."""
        return {value: counter for (value,), counter in self._counters[family_name].items()}

    def get_or_create_counter(self, family_name: str, label_value: str) -> Counter:
        """Return the counter of a value of an open label, or OTHER_LABEL's if the family is full."""
        counters, family = self._counters[family_name], self.families[family_name]
        if (label_value,) not in counters:
            if len(counters.keys() - {(OTHER_LABEL,)}) >= family.max_label_values:
                return counters[OTHER_LABEL,]
            counters[label_value,] = Counter(family, (label_value,))
        return counters[label_value,]

    def get_histogram(self, family_name: str, *label_values: str) -> Histogram:
        return self._histograms[family_name][label_values]

    def render(self, gauges: Mapping[str, GaugeValues], aliases: Mapping[str, str] = NO_ALIASES) -> str:
        """Return the page of all families, in order. A family with an alias is repeated under the alias."""
        return "".join(self._render_family(family, gauges, aliases.get(family.name))
                       for family in self.families.values())

    def _render_family(self, family: MetricDefinition, gauges: Mapping[str, GaugeValues], alias: str | None) -> str:
        lines = [f"# HELP {family.name} {family.help}\n", f"# TYPE {family.name} {family.metric_type}\n"]
        if family.metric_type is MetricType.GAUGE:
            lines += [f"{family.sample_prefix(values)}{format_number(value)}\n"
                      for values, value in gauges[family.name].items()]
        else:
            metrics: Mapping[LabelValues, Counter | Histogram] = (
                self._counters if family.metric_type is MetricType.COUNTER else self._histograms)[family.name]
            lines += chain.from_iterable(metric.render_lines() for metric in metrics.values())
        if alias is not None:
            lines += [line.replace(family.name, alias, 1) for line in lines]
        return "".join(lines)


def format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
