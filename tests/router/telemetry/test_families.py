"""Metric families: compatible with text-generation-inference, and as listed in docs/metrics.md."""

import re
from pathlib import Path

import pytest

from router.telemetry.families import DURATIONS, LORAX, families, hundredths
from router.telemetry.instruments import Family, Kind
from router.text.prompts import Limits

LIMITS = Limits(max_input_tokens=1000, max_total_tokens=4000)
FAMILIES = {family.name: family for family in families(LIMITS, 3, adapters=True)}
PAGE = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
BUCKETS = {"D": DURATIONS, "S": tuple(range(1, 1025)), "P": hundredths(1000), "L": hundredths(4000), "T": (0, 1, 2),
           "": ()}
# Metrics of TGI's router: name to type, labels and buckets.
TGI = {
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
VALUES = {
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
OF_LORAX = {"download_adapter", "embedding_failure", "classification_failure"}  # features that only LoRAX has
OURS = {"timeout", "embed", *OF_LORAX}


@pytest.mark.parametrize("name", TGI)
def test_what_dashboards_of_tgi_ask_for_is_there(name: str) -> None:
    kind, label, buckets = TGI[name]
    family = FAMILIES[name]
    assert (family.kind, ",".join(family.labels), family.bounds) == (kind, label, BUCKETS[buckets])


@pytest.mark.parametrize("name", VALUES)
def test_labels_have_the_values_that_tgi_gives_them(name: str) -> None:
    assert set(FAMILIES[name].values) - OURS == VALUES[name]


def test_buckets_of_durations_grow_by_half() -> None:
    assert len(DURATIONS) == 35
    assert list(DURATIONS) == pytest.approx([0.0001 * 1.5**k for k in range(1, 36)])
    assert (DURATIONS[0], DURATIONS[-1]) == pytest.approx((0.00015, 145.6), rel=1e-3)


def test_lengths_have_a_hundred_equal_buckets() -> None:
    assert FAMILIES["tgi_request_input_length"].bounds == tuple(float(10 * count) for count in range(1, 101))
    assert FAMILIES["tgi_request_generated_tokens"].bounds[-1] == 4000


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("vllm:")])
def test_what_the_gateway_asks_for_is_a_gauge(name: str) -> None:
    assert FAMILIES[name].kind is Kind.GAUGE


def listed() -> dict[str, tuple[str, str, str]]:
    """Return type, labels and buckets by name, as written on the page."""
    return {name: (kind, labels, buckets) for name, kind, labels, buckets in re.findall(
        r"^\| `([\w:]+)` \| (\w+) \| (.*?) \| (\w?) \| .+ \|$", PAGE, re.MULTILINE)}


def as_written(family: Family) -> tuple[str, str]:
    if family.values:
        pairs = zip(family.labels, (family.values, family.second), strict=False)
        return family.kind, "; ".join(f"`{label}`: {', '.join(values)}" for label, values in pairs)
    return family.kind, ", ".join(f"`{label}`" for label in family.labels)


def test_the_page_lists_every_metric_with_type_labels_and_buckets() -> None:
    rows = listed()
    assert list(rows) == list(FAMILIES)
    for name, (kind, labels, buckets) in rows.items():
        assert (kind, labels) == as_written(FAMILIES[name]), name
        assert FAMILIES[name].bounds == BUCKETS[buckets], name


def test_the_page_explains_every_error() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert explained == ["err", *FAMILIES["tgi_request_failure"].values]


# Metrics of LoRAX's router that we measure too.
LORAX_HAS = {
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


def test_what_dashboards_of_lorax_ask_for_is_ours_under_another_name() -> None:
    assert set(LORAX.values()) == set(LORAX_HAS)
    for name, twin in LORAX.items():
        kind, label, buckets = LORAX_HAS[twin]
        family = FAMILIES[name]
        assert (family.kind, ",".join(family.labels), family.bounds) == (kind, label, BUCKETS[buckets]), twin


def test_the_page_names_each_that_lorax_calls_otherwise() -> None:
    """Names that differ only in their prefix are listed under ours."""
    others = {twin for name, twin in LORAX.items() if twin.removeprefix("lorax_") != name.removeprefix("tgi_")}
    assert all(f"`{name}`" in PAGE for name in others)
    told = PAGE.partition("## Under the names of LoRAX")[2]
    assert {name for name in LORAX if f"`{name}`" in told} == set(LORAX)


def test_no_name_has_an_ending_of_newer_formats_and_every_help_is_a_line() -> None:
    for family in FAMILIES.values():
        assert not family.name.endswith(("_total", "_created"))
        assert family.help.endswith(".")
        assert "\n" not in family.help
        assert "\\" not in family.help
