"""Metric families: compatible with text-generation-inference, and as listed in docs/metrics.md."""

import re
from pathlib import Path

import pytest

from router.telemetry.instruments import MetricDefinition, MetricType
from router.telemetry.metric_definitions import DURATION_BUCKETS, LORAX_METRIC_NAMES, all_families, percent_buckets
from router.text.prompt_encoder import TokenLimits

TOKEN_LIMITS = TokenLimits(max_input_tokens=1000, max_total_tokens=4000)
FAMILY_BY_NAME = {family.name: family for family in all_families(TOKEN_LIMITS, 3, with_adapters=True)}
METRICS_DOC = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
BUCKETS_BY_CODE = {"D": DURATION_BUCKETS, "S": tuple(range(1, 1025)), "P": percent_buckets(1000),
                   "L": percent_buckets(4000), "T": (0, 1, 2), "": ()}
# Metrics of TGI's router: name to type, labels and buckets.
TGI_METRICS = {
    "tgi_request_count": ("counter", "", ""),
    "tgi_request_success": ("counter", "", ""),
    "tgi_request_failure": ("counter", "err", ""),
    "tgi_request_duration": ("histogram", "", "D"),
    "tgi_request_validation_duration": ("histogram", "", "D"),
    "tgi_request_queue_duration": ("histogram", "", "D"),
    "tgi_request_inference_duration": ("histogram", "", "D"),
    "tgi_request_mean_time_per_token_duration": ("histogram", "", "D"),
    "tgi_request_generated_tokens": ("histogram", "", "L"),
    "tgi_request_input_length": ("histogram", "", "P"),
    "tgi_request_max_new_tokens": ("histogram", "", "L"),
    "tgi_request_skipped_tokens": ("histogram", "", "T"),
    "tgi_queue_size": ("gauge", "", ""),
    "tgi_batch_current_size": ("gauge", "", ""),
    "tgi_batch_current_max_tokens": ("gauge", "", ""),
    "tgi_batch_max_total_tokens": ("gauge", "", ""),
    "tgi_batch_next_size": ("histogram", "", "S"),
    "tgi_batch_inference_count": ("counter", "method", ""),
    "tgi_batch_inference_success": ("counter", "method", ""),
    "tgi_batch_inference_failure": ("counter", "method", ""),
    "tgi_batch_inference_duration": ("histogram", "method", "D"),
    "tgi_batch_forward_duration": ("histogram", "method", "D"),
    "tgi_batch_decode_duration": ("histogram", "method", "D"),
    "tgi_batch_filter_duration": ("histogram", "method", "D"),
    "tgi_batch_concat_duration": ("histogram", "method", "D"),
    "tgi_batch_concat": ("counter", "reason", ""),
}
TGI_LABEL_VALUES = {
    "tgi_request_failure": {"overloaded", "validation", "template", "generation", "incomplete", "dropped"},
    "tgi_batch_inference_count": {"prefill", "decode"},
    "tgi_batch_inference_success": {"prefill", "decode"},
    "tgi_batch_inference_failure": {"prefill", "decode"},
    "tgi_batch_inference_duration": {"prefill", "decode"},
    "tgi_batch_forward_duration": {"prefill", "decode"},
    "tgi_batch_decode_duration": {"prefill", "decode"},
    "tgi_batch_filter_duration": {"prefill", "decode"},
    "tgi_batch_concat_duration": {"decode"},
    "tgi_batch_concat": {"backpressure", "wait_exceeded", "chunking"},
}
LORAX_ERRORS = {"download_adapter", "embedding_failure", "classification_failure"}  # features that only LoRAX has
EXTRA_LABEL_VALUES = {"timeout", "embed", *LORAX_ERRORS}


@pytest.mark.parametrize("name", TGI_METRICS)
def test_metrics_of_tgi_dashboards_exist(name: str) -> None:
    kind, label, buckets = TGI_METRICS[name]
    family = FAMILY_BY_NAME[name]
    assert (family.metric_type, ",".join(family.label_names),
            family.bucket_bounds) == (kind, label, BUCKETS_BY_CODE[buckets])


@pytest.mark.parametrize("name", TGI_LABEL_VALUES)
def test_label_values_match_tgi(name: str) -> None:
    assert set(FAMILY_BY_NAME[name].label_values) - EXTRA_LABEL_VALUES == TGI_LABEL_VALUES[name]


def test_duration_buckets_grow_by_half() -> None:
    assert len(DURATION_BUCKETS) == 35
    assert list(DURATION_BUCKETS) == pytest.approx([0.0001 * 1.5**k for k in range(1, 36)])
    assert (DURATION_BUCKETS[0], DURATION_BUCKETS[-1]) == pytest.approx((0.00015, 145.6), rel=1e-3)


def test_length_histograms_have_a_hundred_equal_buckets() -> None:
    assert FAMILY_BY_NAME["tgi_request_input_length"].bucket_bounds == tuple(float(10 * count)
                                                                             for count in range(1, 101))
    assert FAMILY_BY_NAME["tgi_request_generated_tokens"].bucket_bounds[-1] == 4000


@pytest.mark.parametrize("name", [name for name in FAMILY_BY_NAME if name.startswith("vllm:")])
def test_gateway_metrics_are_gauges(name: str) -> None:
    assert FAMILY_BY_NAME[name].metric_type is MetricType.GAUGE


def read_documented_families() -> dict[str, tuple[str, str, str]]:
    """Return type, labels and buckets by name, as written on the page."""
    return {name: (kind, labels, buckets) for name, kind, labels, buckets in re.findall(
        r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| (\w?) \| .+ \|$", METRICS_DOC, re.MULTILINE)}


def format_as_documented(family: MetricDefinition) -> tuple[str, str]:
    if family.label_values:
        pairs = zip(family.label_names, (family.label_values, family.second_label_values), strict=False)
        return family.metric_type, "; ".join(f"`{label}`: {', '.join(values)}" for label, values in pairs)
    return family.metric_type, ", ".join(f"`{label}`" for label in family.label_names)


def test_documentation_lists_every_metric_with_type_labels_and_buckets() -> None:
    rows = read_documented_families()
    assert list(rows) == list(FAMILY_BY_NAME)
    for name, (kind, labels, buckets) in rows.items():
        assert (kind, labels) == format_as_documented(FAMILY_BY_NAME[name]), name
        assert FAMILY_BY_NAME[name].bucket_bounds == BUCKETS_BY_CODE[buckets], name


def test_documentation_explains_every_error() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", METRICS_DOC, re.MULTILINE)
    assert explained == ["err", *FAMILY_BY_NAME["tgi_request_failure"].label_values]


# Metrics of LoRAX's router that weft measures too.
LORAX_METRICS = {
    "lorax_request_count": ("counter", "", ""),
    "lorax_request_success": ("counter", "", ""),
    "lorax_request_failure": ("counter", "err", ""),
    "lorax_request_duration": ("histogram", "", "D"),
    "lorax_request_validation_duration": ("histogram", "", "D"),
    "lorax_request_queue_duration": ("histogram", "", "D"),
    "lorax_request_inference_duration": ("histogram", "", "D"),
    "lorax_request_mean_time_per_token_duration": ("histogram", "", "D"),
    "lorax_request_input_length": ("histogram", "", "P"),
    "lorax_request_generated_tokens": ("histogram", "", "L"),
    "lorax_request_max_new_tokens": ("histogram", "", "L"),
    "lorax_request_skipped_tokens": ("histogram", "", "T"),
    "lorax_queue_length": ("gauge", "", ""),
    "lorax_batch_current_size": ("gauge", "", ""),
    "lorax_batch_current_max_tokens": ("gauge", "", ""),
    "lorax_batch_next_size": ("histogram", "", "S"),
    "lorax_batch_concat": ("counter", "reason", ""),
    "lorax_batch_inference_count": ("counter", "method", ""),
    "lorax_batch_inference_success": ("counter", "method", ""),
    "lorax_batch_inference_failure": ("counter", "method", ""),
    "lorax_batch_inference_duration": ("histogram", "method", "D"),
}


def test_metrics_of_lorax_dashboards_are_aliases_of_ours() -> None:
    assert set(LORAX_METRIC_NAMES.values()) == set(LORAX_METRICS)
    for name, twin in LORAX_METRIC_NAMES.items():
        kind, label, buckets = LORAX_METRICS[twin]
        family = FAMILY_BY_NAME[name]
        assert (family.metric_type, ",".join(family.label_names),
                family.bucket_bounds) == (kind, label, BUCKETS_BY_CODE[buckets]), twin


def test_documentation_names_every_lorax_alias() -> None:
    """LoRAX's section lists all names that have an alias, and the aliases that differ in more than their prefix."""
    aliases = {twin for name, twin in LORAX_METRIC_NAMES.items()
               if twin.removeprefix("lorax_") != name.removeprefix("tgi_")}
    assert all(f"`{name}`" in METRICS_DOC for name in aliases)
    section = METRICS_DOC.partition("## Under the names of LoRAX")[2]
    assert {name for name in LORAX_METRIC_NAMES if f"`{name}`" in section} == set(LORAX_METRIC_NAMES)


def test_metric_names_have_no_openmetrics_suffix_and_help_is_one_line() -> None:
    for family in FAMILY_BY_NAME.values():
        assert not family.name.endswith(("_total", "_created"))
        assert family.help.endswith(".")
        assert "\n" not in family.help
        assert "\\" not in family.help
