"""Counters, gauges and histograms, and their text page for Prometheus.

Counters and histograms accumulate; gauges are read when a page is made. An observation costs a binary search and two
additions, even if it counts many times. The metrics themselves are defined in `families.py`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate, product
from typing import TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Values = tuple[str, ...]  # of labels
OTHER = "other"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """Definition of the metrics of one name.

    The label values of a counter or histogram are fixed: `values`, and `second` for a second label. Or its only label
    is open: the first `most` values get a counter each, and all later ones count as OTHER.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, ascending; one more bucket has no bound
    second: tuple[str, ...] = ()  # values of the second label
    most: int = 0  # maximum number of values of an open label; 0: the values are fixed

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"

    @property
    def combinations(self) -> list[Values]:
        """Label values of the meters that exist from the beginning."""
        return [(OTHER,)] if self.most else [*product(*filter(None, (self.values, self.second)))]

    def sample(self, values: Values, suffix: str = "", bound: str = "") -> str:
        """Return a sample's line up to its value."""
        pairs = [*zip(self.labels, values, strict=True), *([("le", bound)] if bound else [])]
        labels = ",".join(f'{label}="{value.translate(ESCAPES)}"' for label, value in pairs)
        return f"{self.name}{suffix}{{{labels}}} " if labels else f"{self.name}{suffix} "


class Counter:
    __slots__ = ("_before", "value")

    def __init__(self, family: Family, values: Values) -> None:
        self.value = 0
        self._before = family.sample(values)

    def add(self, count: int = 1) -> None:
        self.value += count

    def lines(self) -> Iterator[str]:
        yield f"{self._before}{self.value}\n"


class Histogram:
    __slots__ = ("_before", "_bounds", "_counts", "sum")

    def __init__(self, family: Family, values: Values) -> None:
        self.sum = 0.0
        self._bounds = family.bounds
        self._counts = [0] * (len(family.bounds) + 1)
        self._before = samples(family, values)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def lines(self) -> Iterator[str]:
        *buckets, total, count = self._before
        for before, below in zip(buckets, accumulate(self._counts), strict=True):
            yield f"{before}{below}\n"
        yield f"{total}{number(self.sum)}\n"
        yield f"{count}{self.count}\n"


@cache
def samples(family: Family, values: Values) -> list[str]:
    """Return all lines of a histogram up to their values."""
    bounds = [*map(number, family.bounds), "+Inf"]
    return [*(family.sample(values, "_bucket", bound) for bound in bounds),
            family.sample(values, "_sum"), family.sample(values, "_count")]


M = TypeVar("M", Counter, Histogram)
Reading = Mapping[Values, float]  # values of a gauge, by the values of its labels
NO_TWINS: Mapping[str, str] = {}


class Meters:
    """All counters and histograms: one for each family and combination of its label values.

    Those with fixed label values exist, with 0, from the beginning.
    """

    def __init__(self, families: Iterable[Family]) -> None:
        self.families = {family.name: family for family in families}
        self._counters = self._made(Counter, Kind.COUNTER)
        self._histograms = self._made(Histogram, Kind.HISTOGRAM)

    def _made(self, make: Callable[[Family, Values], M], kind: Kind) -> dict[str, dict[Values, M]]:
        """Create the meters of one kind, by the name of the family and the values of its labels."""
        return {name: {values: make(family, values) for values in family.combinations}
                for name, family in self.families.items() if family.kind is kind}

    def counter(self, name: str, *values: str) -> Counter:
        return self._counters[name][values]

    def counters(self, name: str) -> Mapping[str, Counter]:
        """Return the counters of a family by the value of its only label."""
        return {value: counter for (value,), counter in self._counters[name].items()}

    def counter_for(self, name: str, value: str) -> Counter:
        """Return the counter of a value of an open label; OTHER's if the family already has `most` values."""
        counters, family = self._counters[name], self.families[name]
        if (value,) not in counters:
            value = value if len(counters.keys() - {(OTHER,)}) < family.most else OTHER
            counters.setdefault((value,), Counter(family, (value,)))
        return counters[value,]

    def histogram(self, name: str, *values: str) -> Histogram:
        return self._histograms[name][values]

    def page(self, gauges: Mapping[str, Reading], twins: Mapping[str, str] = NO_TWINS) -> str:
        """Return the page of all families, in order. A family with a twin is repeated under the twin's name."""
        return "".join(self._text(family, gauges, twins.get(family.name)) for family in self.families.values())

    def _text(self, family: Family, gauges: Mapping[str, Reading], twin: str | None) -> str:
        text = "".join(self._lines(family, gauges))
        if twin is None:
            return text
        again = (line.replace(family.name, twin, 1) for line in text.splitlines(keepends=True))
        return text + "".join(again)

    def _lines(self, family: Family, gauges: Mapping[str, Reading]) -> Iterator[str]:
        yield family.head
        if family.kind is Kind.GAUGE:
            for values, value in gauges[family.name].items():
                yield f"{family.sample(values)}{number(value)}\n"
            return
        meters: Iterable[Counter | Histogram] = (
            self._counters[family.name].values() if family.kind is Kind.COUNTER
            else self._histograms[family.name].values())
        for meter in meters:
            yield from meter.lines()


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
