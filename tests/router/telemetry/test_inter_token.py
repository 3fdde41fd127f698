"""Inter-token latencies, compared with a plain record of each sequence's last token."""

from hypothesis import given
from hypothesis import strategies as st

from router.telemetry.instruments import Histogram, MetricDefinition, MetricType
from router.telemetry.server_metrics import InterTokenLatency


class RecordingHistogram(Histogram):
    def __init__(self) -> None:
        super().__init__(MetricDefinition(MetricType.HISTOGRAM, "gaps", "Gaps.", bucket_bounds=(1.0,)), ())
        self.observed: list[float] = []

    def observe(self, value: float, times: int = 1) -> None:
        self.observed += [value] * times


def deliver(latency: InterTokenLatency, numbers: set[int], known: set[int], now: float) -> list[int]:
    return sorted(latency.record_delivery(dict.fromkeys(numbers, 1).keys(), known, now))


def test_first_token_has_no_inter_token_latency() -> None:
    histogram = RecordingHistogram()
    latency = InterTokenLatency(histogram)
    assert deliver(latency, {1, 2}, {1, 2}, 5.0) == [1, 2]
    assert deliver(latency, {1, 2}, {1, 2}, 7.0) == []
    assert deliver(latency, {1, 2, 3}, {1, 2, 3}, 8.0) == [3]
    assert histogram.observed == [2.0, 2.0, 1.0, 1.0]


def test_sequence_that_missed_a_step_waited_since_its_own_last_token() -> None:
    histogram = RecordingHistogram()
    latency = InterTokenLatency(histogram)
    deliver(latency, {1, 2}, {1, 2}, 1.0)
    deliver(latency, {2}, {1, 2}, 2.0)
    assert deliver(latency, {1}, {1, 2}, 5.0) == []
    assert histogram.observed == [1.0, 4.0]


def test_removed_sequence_id_counts_as_new() -> None:
    latency = InterTokenLatency(RecordingHistogram())
    deliver(latency, {1, 2}, {1, 2}, 1.0)
    deliver(latency, {2}, {1, 2}, 2.0)
    latency.remove_sequence(1)
    assert deliver(latency, {1, 2}, {1, 2}, 3.0) == [1]


def test_removed_sequences_leave_nothing_behind() -> None:
    latency = InterTokenLatency(RecordingHistogram())
    for number in range(100):
        deliver(latency, {number, 1000}, {number, 1000}, float(number))
        latency.remove_sequence(number)
    assert latency._earlier_delivery_times == {}


@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)), st.integers(0, 9)), max_size=40))
def test_latencies_match_a_simple_model(steps: list[tuple[set[int], set[int], int]]) -> None:
    """Before each step some sequences leave; some of the others get tokens."""
    histogram, last, now = RecordingHistogram(), dict[int, int](), 0
    latency, expected, base = InterTokenLatency(histogram), list[float](), 0
    for leaving, having, pause in steps:
        for number in leaving & last.keys():
            latency.remove_sequence(number)
            del last[number]
        base += 10  # a number is never used again
        numbers = {number for number in last if number % 10 in having} | {base + 1}
        now += pause
        known = last.keys() | numbers
        firsts = deliver(latency, numbers, known, now)
        assert firsts == sorted(numbers - last.keys())
        expected += [now - last[number] for number in numbers & last.keys()]
        last |= dict.fromkeys(numbers, now)
    assert sorted(histogram.observed) == sorted(expected)
