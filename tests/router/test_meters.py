"""Counters, gauges and histograms, read as Prometheus' own client reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.meters import CONTENT_TYPE, Family, Kind, Meters

SECONDS = Family("seconds", Kind.HISTOGRAM, "Took.", bounds=(0.25, 1.0, 2.5))


def samples(text):
    return {(sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def page_of(*families, gauges=None):
    return samples(Meters(families).page(gauges or {}))


def test_counters_keep_their_name_and_begin_with_zero():
    meters = Meters([Family("knots", Kind.COUNTER, "Tied.")])
    assert meters.page({}) == "# HELP knots Tied.\n# TYPE knots counter\nknots 0\n"
    meters.counter("knots").add()
    meters.counter("knots").add(41)
    assert meters.page({}).endswith("knots 42\n")


def test_every_value_of_a_label_has_its_counter_from_the_beginning():
    meters = Meters([Family("knots", Kind.COUNTER, "Tied.", ("by",), ("hand", "foot"))])
    meters.counter("knots", "foot").add(2)
    assert meters.page({}).endswith('\nknots{by="hand"} 0\nknots{by="foot"} 2\n')
    # The client's reader gives every counter the ending that newer formats ask for.
    assert samples(meters.page({})) == {("knots_total", ("by", "hand")): 0, ("knots_total", ("by", "foot")): 2}
    assert meters.counters("knots").keys() == {"hand", "foot"}


def test_a_value_that_nobody_foresaw_is_a_mistake():
    with pytest.raises(KeyError):
        Meters([Family("knots", Kind.COUNTER, "Tied.", ("by",), ("hand",))]).counter("knots", "tongue")


@pytest.mark.parametrize(("value", "bucket"), [
    (-1.0, "0.25"), (0.25, "0.25"), (0.2500001, "1"), (1, "1"), (2.4, "2.5"), (2.6, "+Inf"), (1e9, "+Inf")])
def test_what_equals_a_bound_is_below_it(value, bucket):
    meters = Meters([SECONDS])
    meters.histogram("seconds").observe(value)
    first = next(line for line in meters.page({}).splitlines() if line.startswith("seconds_bucket") and line[-1] == "1")
    assert first == f'seconds_bucket{{le="{bucket}"}} 1'


def test_buckets_count_all_below_them():
    meters = Meters([SECONDS])
    for value in (0.1, 0.2, 0.5, 9.0):
        meters.histogram("seconds").observe(value)
    assert samples(meters.page({})) == pytest.approx({
        ("seconds_bucket", ("le", "0.25")): 2, ("seconds_bucket", ("le", "1")): 3, ("seconds_bucket", ("le", "2.5")): 3,
        ("seconds_bucket", ("le", "+Inf")): 4, ("seconds_sum",): 9.8, ("seconds_count",): 4})


def test_many_that_observe_the_same_count_as_many():
    meters = Meters([SECONDS])
    meters.histogram("seconds").observe(0.5, 64)
    meters.histogram("seconds").observe(0.5, 0)
    assert (meters.histogram("seconds").count, meters.histogram("seconds").sum) == (64, 32.0)


def test_a_gauge_says_what_is_read_for_the_page():
    family = Family("looms", Kind.GAUGE, "Here.")
    assert page_of(family, gauges={"looms": {(): 0.1}}) == {("looms",): 0.1}
    assert page_of(family, gauges={"looms": {(): 3.0}}) == {("looms",): 3}
    with pytest.raises(KeyError):
        page_of(family)


def test_labels_may_say_anything():
    family = Family("looms", Kind.GAUGE, "Here.", ("of", "in"))
    strange = 'a "b"\\\n{},='
    assert page_of(family, gauges={"looms": {(strange, ""): 1}}) == {("looms", ("in", ""), ("of", strange)): 1}


def test_families_come_in_their_order_each_with_help_and_type():
    meters = Meters([SECONDS, Family("knots", Kind.COUNTER, "Tied."), Family("looms", Kind.GAUGE, "Here.")])
    text = meters.page({"looms": {(): 1}})
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# HELP seconds Took.", "# TYPE seconds histogram", "# HELP knots Tied.", "# TYPE knots counter",
        "# HELP looms Here.", "# TYPE looms gauge"]


def test_the_media_type_is_that_of_the_format():
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
