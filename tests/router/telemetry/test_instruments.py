"""Counters, gauges and histograms, read as Prometheus' own client reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.telemetry.instruments import CONTENT_TYPE, OTHER, Family, Kind, Meters

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
    # The client's parser appends `_total` to every counter, as newer formats require.
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


def test_two_labels_have_a_meter_for_each_pair():
    family = Family("knots", Kind.COUNTER, "Tied.", ("by", "how"), ("hand", "foot"), second=("well", "badly"))
    meters = Meters([family])
    meters.counter("knots", "foot", "badly").add()
    assert meters.page({}).splitlines()[2:] == [
        'knots{by="hand",how="well"} 0', 'knots{by="hand",how="badly"} 0', 'knots{by="foot",how="well"} 0',
        'knots{by="foot",how="badly"} 1']


def test_values_that_come_as_they_come_are_only_so_many():
    meters = Meters([Family("knots", Kind.COUNTER, "Tied.", ("by",), most=2)])
    for name in ('a "b"', "c", "d", "c", OTHER, "e"):
        meters.counter_for("knots", name).add()
    assert samples(meters.page({})) == {
        ("knots_total", ("by", OTHER)): 3, ("knots_total", ("by", 'a "b"')): 1, ("knots_total", ("by", "c")): 2}


def test_a_twin_says_the_same_under_another_name():
    meters = Meters([SECONDS, Family("knots", Kind.COUNTER, "Tied knots.", ("by",), ("knots",))])
    meters.histogram("seconds").observe(0.5)
    plain, both = meters.page({}), meters.page({}, {"knots": "ties", "seconds": "ticks"})
    assert both.startswith(plain.partition("# HELP knots")[0])
    told = samples(both)
    assert {(name.replace("ties", "knots").replace("ticks", "seconds"), *labels): value
            for (name, *labels), value in told.items()} == samples(plain)
    assert len(told) == 2 * len(samples(plain))
    assert '# HELP ties Tied knots.\n# TYPE ties counter\nties{by="knots"} 0\n' in both


def test_families_come_in_their_order_each_with_help_and_type():
    meters = Meters([SECONDS, Family("knots", Kind.COUNTER, "Tied."), Family("looms", Kind.GAUGE, "Here.")])
    text = meters.page({"looms": {(): 1}})
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# HELP seconds Took.", "# TYPE seconds histogram", "# HELP knots Tied.", "# TYPE knots counter",
        "# HELP looms Here.", "# TYPE looms gauge"]


def test_the_media_type_is_that_of_the_format():
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"
