"""Parser for a page of Prometheus metrics, and checks that hold for every such page."""

import re

from prometheus_client.parser import text_string_to_metric_families

SAMPLE_LINE = re.compile(r'([a-zA-Z_:][\w:]*(?:\{(?:\w+="(?:[^"\\]|\\.)*",?)+\})?) (\S+)')


def parse_metrics(page: str) -> dict[str, float]:
    """Return the value of each sample, by name and labels such as `tgi_request_failure{err="dropped"}`."""
    samples = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            match = SAMPLE_LINE.fullmatch(line)
            assert match is not None, f"not a sample: {line}"
            assert match[1] not in samples, f"twice: {line}"
            samples[match[1]] = float(match[2])
    return samples


def check_metrics_page(page: str) -> None:
    """Assert that Prometheus's own client reads the page, histograms add up, and no counter is negative."""
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert family.type in {"counter", "gauge", "histogram"}, family
        assert family.samples, f"{family.name} is empty"
        if family.type == "histogram":
            check_histogram(family.samples)
        elif family.type == "counter":
            assert all(sample.value >= 0 for sample in family.samples)


def check_histogram(samples: list) -> None:
    series: dict[tuple, dict] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        histogram = series.setdefault(tuple(labels.items()), {"buckets": []})
        if "le" in sample.labels:
            histogram["buckets"].append((float(sample.labels["le"]), sample.value))
        else:
            histogram[sample.name.rpartition("_")[2]] = sample.value
    for histogram in series.values():
        bounds, counts = zip(*histogram["buckets"], strict=True)
        assert list(bounds) == sorted(set(bounds))
        assert list(counts) == sorted(counts)
        assert bounds[-1] == float("inf")
        assert counts[-1] == histogram["count"]
        assert histogram["sum"] >= 0


def get_failure_counts(samples: dict[str, float]) -> dict[str, float]:
    """Return the numbers of failed requests that are not 0, by the value of `err`."""
    all_counts = {name.split('"')[1]: value for name, value in samples.items()
                  if name.startswith("tgi_request_failure{")}
    return {err: value for err, value in all_counts.items() if value}
