"""Counters, gauges and histograms, read as Prometheus' own client reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.instruments import CONTENT_TYPE, OTHER_LABEL, MetricDefinition, MetricRegistry, MetricType

SECONDS_FAMILY = MetricDefinition(MetricType.HISTOGRAM, "seconds", "Took.", bucket_bounds=(0.25, 1.0, 2.5))


def parse_samples(text):
    return {(sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def render_samples(*families, gauges=None):
    return parse_samples(MetricRegistry(families).render(gauges or {}))


def test_counters_keep_their_name_and_start_at_zero():
    registry = MetricRegistry([MetricDefinition(MetricType.COUNTER, "knots", "Tied.")])
    assert registry.render({}) == "# HELP knots Tied.\n# TYPE knots counter\nknots 0\n"
    registry.get_counter("knots").add()
    registry.get_counter("knots").add(41)
    assert registry.render({}).endswith("knots 42\n")


def test_every_label_value_has_a_counter_from_the_start():
    registry = MetricRegistry([MetricDefinition(MetricType.COUNTER, "knots", "Tied.", ("by",), ("hand", "foot"))])
    registry.get_counter("knots", "foot").add(2)
    assert registry.render({}).endswith('\nknots{by="hand"} 0\nknots{by="foot"} 2\n')
    # The client's parser appends `_total` to every counter, as newer formats require.
    assert parse_samples(registry.render({})) == {("knots_total", ("by", "hand")): 0,
                                                  ("knots_total", ("by", "foot")): 2}
    assert registry.get_counters_by_label("knots").keys() == {"hand", "foot"}


def test_unknown_label_value_is_an_error():
    with pytest.raises(KeyError):
        MetricRegistry(
            [MetricDefinition(MetricType.COUNTER, "knots", "Tied.", ("by",), ("hand",))]).get_counter("knots", "tongue")


@pytest.mark.parametrize(("value", "bucket"), [
    (-1.0, "0.25"), (0.25, "0.25"), (0.2500001, "1"), (1, "1"), (2.4, "2.5"), (2.6, "+Inf"), (1e9, "+Inf")])
def test_value_equal_to_a_bound_falls_into_its_bucket(value, bucket):
    registry = MetricRegistry([SECONDS_FAMILY])
    registry.get_histogram("seconds").observe(value)
    first = next(line for line in registry.render({}).splitlines() if line.startswith("seconds_bucket")
                 and line[-1] == "1")
    assert first == f'seconds_bucket{{le="{bucket}"}} 1'


def test_buckets_are_cumulative():
    registry = MetricRegistry([SECONDS_FAMILY])
    for value in (0.1, 0.2, 0.5, 9.0):
        registry.get_histogram("seconds").observe(value)
    assert parse_samples(registry.render({})) == pytest.approx({
        ("seconds_bucket", ("le", "0.25")): 2, ("seconds_bucket", ("le", "1")): 3, ("seconds_bucket", ("le", "2.5")): 3,
        ("seconds_bucket", ("le", "+Inf")): 4, ("seconds_sum",): 9.8, ("seconds_count",): 4})


def test_value_can_be_observed_several_times_at_once():
    registry = MetricRegistry([SECONDS_FAMILY])
    registry.get_histogram("seconds").observe(0.5, 64)
    registry.get_histogram("seconds").observe(0.5, 0)
    assert (registry.get_histogram("seconds").count, registry.get_histogram("seconds").sum) == (64, 32.0)


def test_quantile_is_the_bound_of_its_bucket():
    histogram = MetricRegistry([SECONDS_FAMILY]).get_histogram("seconds")
    assert histogram.estimate_quantile(0.5) is None
    for value, times in ((0.1, 6), (0.5, 3), (99.0, 1)):
        histogram.observe(value, times)
    assert [histogram.estimate_quantile(fraction) for fraction in (0.5, 0.6, 0.9, 0.99)] == [0.25, 0.25, 1.0, 2.5]


def test_gauge_shows_the_value_read_for_the_page():
    family = MetricDefinition(MetricType.GAUGE, "looms", "Here.")
    assert render_samples(family, gauges={"looms": {(): 0.1}}) == {("looms",): 0.1}
    assert render_samples(family, gauges={"looms": {(): 3.0}}) == {("looms",): 3}
    with pytest.raises(KeyError):
        render_samples(family)


def test_label_values_are_escaped():
    family = MetricDefinition(MetricType.GAUGE, "looms", "Here.", ("of", "in"))
    strange = 'a "b"\\\n{},='
    assert render_samples(family, gauges={"looms": {(strange, ""): 1}}) == {("looms", ("in", ""), ("of", strange)): 1}


def test_two_labels_have_a_counter_for_each_pair():
    family = MetricDefinition(MetricType.COUNTER, "knots", "Tied.", ("by", "how"), ("hand", "foot"),
                              second_label_values=("well", "badly"))
    registry = MetricRegistry([family])
    registry.get_counter("knots", "foot", "badly").add()
    assert registry.render({}).splitlines()[2:] == [
        'knots{by="hand",how="well"} 0', 'knots{by="hand",how="badly"} 0', 'knots{by="foot",how="well"} 0',
        'knots{by="foot",how="badly"} 1']


def test_number_of_open_label_values_is_limited():
    registry = MetricRegistry([MetricDefinition(MetricType.COUNTER, "knots", "Tied.", ("by",), max_label_values=2)])
    for name in ('a "b"', "c", "d", "c", OTHER_LABEL, "e"):
        registry.get_or_create_counter("knots", name).add()
    assert parse_samples(registry.render({})) == {
        ("knots_total", ("by", OTHER_LABEL)): 3, ("knots_total", ("by", 'a "b"')): 1, ("knots_total", ("by", "c")): 2}


def test_alias_reports_the_same_values_under_another_name():
    registry = MetricRegistry([SECONDS_FAMILY,
                               MetricDefinition(MetricType.COUNTER, "knots", "Tied knots.", ("by",), ("knots",))])
    registry.get_histogram("seconds").observe(0.5)
    plain, both = registry.render({}), registry.render({}, {"knots": "ties", "seconds": "ticks"})
    assert both.startswith(plain.partition("# HELP knots")[0])
    samples = parse_samples(both)
    assert {(name.replace("ties", "knots").replace("ticks", "seconds"), *labels): value
            for (name, *labels), value in samples.items()} == parse_samples(plain)
    assert len(samples) == 2 * len(parse_samples(plain))
    assert '# HELP ties Tied knots.\n# TYPE ties counter\nties{by="knots"} 0\n' in both


def test_families_are_rendered_in_order_with_help_and_type():
    registry = MetricRegistry([SECONDS_FAMILY, MetricDefinition(MetricType.COUNTER, "knots", "Tied."),
                               MetricDefinition(MetricType.GAUGE, "looms", "Here.")])
    text = registry.render({"looms": {(): 1}})
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# HELP seconds Took.", "# TYPE seconds histogram", "# HELP knots Tied.", "# TYPE knots counter",
        "# HELP looms Here.", "# TYPE looms gauge"]


def test_content_type_is_that_of_the_format():
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
