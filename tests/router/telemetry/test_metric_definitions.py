"""Metric families: compatible with text-generation-inference, and as listed in docs/reference/metrics.md."""

import re
from pathlib import Path

import pytest

from router.telemetry.instruments import MetricRegistry, MetricType
from router.telemetry.metric_definitions import (
    BATCH_SIZE_BUCKETS,
    LOOP_DELAY_BUCKETS,
    LORAX_METRIC_NAMES,
    REQUEST_DURATION_BUCKETS,
    STEP_DURATION_BUCKETS,
    all_metric_definitions,
    length_bucket_bounds,
)
from router.telemetry.metrics_docs import PAGE, update_tables
from router.text.prompt_encoder import TokenLimits

TOKEN_LIMITS = TokenLimits(max_input_tokens=1000, max_total_tokens=4000)
FAMILY_BY_NAME = {family.name: family for family in all_metric_definitions(TOKEN_LIMITS, 3, with_adapters=True)}
METRICS_DOC = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
BUCKETS_BY_CODE = {"R": REQUEST_DURATION_BUCKETS, "S": STEP_DURATION_BUCKETS, "B": BATCH_SIZE_BUCKETS,
                   "D": LOOP_DELAY_BUCKETS, "P": length_bucket_bounds(1000), "L": length_bucket_bounds(4000),
                   "T": (0, 1, 2), "": ()}
MAX_IDLE_PAGE_BYTES = 40_000
# Metrics of TGI's router: name to type, labels and buckets (which are coarser than TGI's).
TGI_METRICS = {
    "tgi_request_count": ("counter", "", ""),
    "tgi_request_success": ("counter", "", ""),
    "tgi_request_failure": ("counter", "err", ""),
    "tgi_request_duration": ("histogram", "", "R"),
    "tgi_request_validation_duration": ("histogram", "", "S"),
    "tgi_request_queue_duration": ("histogram", "", "R"),
    "tgi_request_inference_duration": ("histogram", "", "R"),
    "tgi_request_mean_time_per_token_duration": ("histogram", "", "S"),
    "tgi_request_generated_tokens": ("histogram", "", "L"),
    "tgi_request_input_length": ("histogram", "", "P"),
    "tgi_request_max_new_tokens": ("histogram", "", "L"),
    "tgi_request_skipped_tokens": ("histogram", "", "T"),
    "tgi_queue_size": ("gauge", "", ""),
    "tgi_batch_current_size": ("gauge", "", ""),
    "tgi_batch_current_max_tokens": ("gauge", "", ""),
    "tgi_batch_max_total_tokens": ("gauge", "", ""),
    "tgi_batch_next_size": ("histogram", "", "B"),
    "tgi_batch_inference_count": ("counter", "method", ""),
    "tgi_batch_inference_success": ("counter", "method", ""),
    "tgi_batch_inference_failure": ("counter", "method", ""),
    "tgi_batch_inference_duration": ("histogram", "method", "S"),
    "tgi_batch_forward_duration": ("histogram", "method", "S"),
    "tgi_batch_decode_duration": ("histogram", "method", "S"),
    "tgi_batch_filter_duration": ("histogram", "method", "S"),
    "tgi_batch_concat_duration": ("histogram", "method", "S"),
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
EXTRA_LABEL_VALUES = {"timeout", "embed", "shutting_down", *LORAX_ERRORS}


@pytest.mark.parametrize("name", TGI_METRICS)
def test_metrics_of_tgi_dashboards_exist(name: str) -> None:
    kind, label, buckets = TGI_METRICS[name]
    family = FAMILY_BY_NAME[name]
    assert (family.metric_type, ",".join(family.label_names),
            family.bucket_bounds) == (kind, label, BUCKETS_BY_CODE[buckets])


@pytest.mark.parametrize("name", TGI_LABEL_VALUES)
def test_label_values_match_tgi(name: str) -> None:
    assert set(FAMILY_BY_NAME[name].label_values) - EXTRA_LABEL_VALUES == TGI_LABEL_VALUES[name]


def test_buckets_cover_a_request_and_a_step() -> None:
    assert (REQUEST_DURATION_BUCKETS[0], REQUEST_DURATION_BUCKETS[-1]) == pytest.approx((0.01, 163.84))
    assert (STEP_DURATION_BUCKETS[0], STEP_DURATION_BUCKETS[-1]) == pytest.approx((0.001, 16.384))
    assert BATCH_SIZE_BUCKETS[:8] == (1, 2, 3, 4, 6, 8, 12, 16)
    assert BATCH_SIZE_BUCKETS[-1] == 1024
    assert FAMILY_BY_NAME["tgi_request_input_length"].bucket_bounds == tuple(50 * count for count in range(1, 21))
    assert FAMILY_BY_NAME["tgi_request_generated_tokens"].bucket_bounds[-1] == 4000


@pytest.mark.parametrize("with_adapters", [False, True])
def test_page_of_an_idle_server_is_small(with_adapters: bool) -> None:
    families = all_metric_definitions(TOKEN_LIMITS, 3, with_adapters=with_adapters)
    page = MetricRegistry(families).render({family.name: {} for family in families})
    assert len(page.encode()) < MAX_IDLE_PAGE_BYTES


@pytest.mark.parametrize("name", [name for name in FAMILY_BY_NAME if name.startswith("vllm:")])
def test_gateway_metrics_are_gauges(name: str) -> None:
    assert FAMILY_BY_NAME[name].metric_type is MetricType.GAUGE


def test_documentation_lists_every_metric() -> None:
    """The tables are generated, so the page must be as `make docs` writes it."""
    assert update_tables(METRICS_DOC) == METRICS_DOC
    names = re.findall(r"^\| `([\w:]+)` \| (?:counter|gauge|histogram) ", METRICS_DOC, re.MULTILINE)
    assert names == list(FAMILY_BY_NAME)


def test_documentation_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{PAGE}: section 'Adapters' has no table"):
        update_tables(METRICS_DOC.replace("| `weft_adapter", "`weft_adapter").replace("## Adapters\n", "## Others\n"))


def test_documentation_explains_every_error() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", METRICS_DOC, re.MULTILINE)
    assert explained == ["err", *FAMILY_BY_NAME["tgi_request_failure"].label_values]


# Metrics of LoRAX's router that weft measures too.
LORAX_METRICS = {
    "lorax_request_count": ("counter", "", ""),
    "lorax_request_success": ("counter", "", ""),
    "lorax_request_failure": ("counter", "err", ""),
    "lorax_request_duration": ("histogram", "", "R"),
    "lorax_request_validation_duration": ("histogram", "", "S"),
    "lorax_request_queue_duration": ("histogram", "", "R"),
    "lorax_request_inference_duration": ("histogram", "", "R"),
    "lorax_request_mean_time_per_token_duration": ("histogram", "", "S"),
    "lorax_request_input_length": ("histogram", "", "P"),
    "lorax_request_generated_tokens": ("histogram", "", "L"),
    "lorax_request_max_new_tokens": ("histogram", "", "L"),
    "lorax_request_skipped_tokens": ("histogram", "", "T"),
    "lorax_queue_length": ("gauge", "", ""),
    "lorax_batch_current_size": ("gauge", "", ""),
    "lorax_batch_current_max_tokens": ("gauge", "", ""),
    "lorax_batch_next_size": ("histogram", "", "B"),
    "lorax_batch_concat": ("counter", "reason", ""),
    "lorax_batch_inference_count": ("counter", "method", ""),
    "lorax_batch_inference_success": ("counter", "method", ""),
    "lorax_batch_inference_failure": ("counter", "method", ""),
    "lorax_batch_inference_duration": ("histogram", "method", "S"),
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
