"""Generator of the tables in docs/reference/metrics.md.

`python -P -m router.telemetry.metrics_docs` writes them; `--check` only compares.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from router.telemetry.instruments import MetricDefinition
from router.telemetry.metric_definitions import (
    ADAPTER_FAMILIES,
    BATCH_SIZE_BUCKETS,
    GATEWAY_FAMILIES,
    LOOP_DELAY_BUCKETS,
    REQUEST_DURATION_BUCKETS,
    SERVER_FAMILIES,
    STEP_DURATION_BUCKETS,
    STEP_FAMILIES,
    length_bucket_bounds,
    request_metric_definitions,
)
from router.text.prompt_encoder import TokenLimits

PAGE = Path("docs/reference/metrics.md")
EXAMPLE_LIMITS, EXAMPLE_TOKENS_PER_STEP = TokenLimits(max_input_tokens=1000, max_total_tokens=4000), 3
FAMILIES_BY_SECTION = {
    "Requests": request_metric_definitions(EXAMPLE_LIMITS, EXAMPLE_TOKENS_PER_STEP),
    "Steps and batches": STEP_FAMILIES,
    "Queue, cache, shards": SERVER_FAMILIES,
    "Adapters": ADAPTER_FAMILIES,
    "For the gateway of Kubernetes": GATEWAY_FAMILIES,
}
BUCKET_CODES = {  # as the page explains them
    (): "", REQUEST_DURATION_BUCKETS: "R", STEP_DURATION_BUCKETS: "S", BATCH_SIZE_BUCKETS: "B",
    LOOP_DELAY_BUCKETS: "D",
    length_bucket_bounds(EXAMPLE_LIMITS.max_input_tokens): "P",
    length_bucket_bounds(EXAMPLE_LIMITS.max_total_tokens): "L",
    tuple(map(float, range(EXAMPLE_TOKENS_PER_STEP))): "T",
}
TABLE_HEAD = "| name | type | labels | buckets | meaning |\n|---|---|---|---|---|\n"


def format_labels(family: MetricDefinition) -> str:
    if not family.label_values:
        return ", ".join(f"`{name}`" for name in family.label_names)
    pairs = zip(family.label_names, (family.label_values, family.second_label_values), strict=False)
    return "; ".join(f"`{name}`: {', '.join(values)}" for name, values in pairs)


def iter_table_rows(families: Iterable[MetricDefinition]) -> Iterator[str]:
    for family in families:
        meaning = family.help.removesuffix(".")
        yield (f"| `{family.name}` | {family.metric_type} | {format_labels(family)} | "
               f"{BUCKET_CODES[family.bucket_bounds]} | {meaning} |\n")


def update_tables(page: str) -> str:
    """Return the page with the table of each section as it is generated now. Raises ValueError if one is missing."""
    for title, families in FAMILIES_BY_SECTION.items():
        table = TABLE_HEAD + "".join(iter_table_rows(families))
        pattern = rf"(^## {re.escape(title)}\n(?:(?!^## |^\| name )[^\n]*\n)*?)^\| name [^\n]*\n(?:\|[^\n]*\n)+"
        page, num_found = re.subn(pattern, lambda match, table=table: match[1] + table,  # type: ignore[misc]
                                  page, count=1, flags=re.MULTILINE)
        if not num_found:
            raise ValueError(f"{PAGE}: section {title!r} has no table that begins with '| name'")
    return page


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    updated_page = update_tables(page)
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(updated_page, encoding="utf-8")
    elif page != updated_page:
        raise SystemExit(f"{PAGE} is not what the metrics say: call make docs")


if __name__ == "__main__":
    main()
