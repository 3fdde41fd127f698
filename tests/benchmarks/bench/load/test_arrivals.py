"""Tests of benchmarks/bench/load/arrivals.py."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.load.arrivals import (
    iter_burst_times,
    iter_even_times,
    iter_poisson_times,
    iter_random_burst_times,
    iter_times_with_uniform_pauses,
    load_trace,
)

SEEDS = st.integers(0, 1000)


@given(SEEDS)
def test_random_arrivals_rise_and_keep_the_rate(seed: int) -> None:
    times = list(islice(iter_poisson_times(4.0, Random(seed)), 4000))
    assert all(before <= after for before, after in pairwise(times))
    assert times[-1] == pytest.approx(1000, rel=0.1)


@given(SEEDS)
def test_bursts_arrive_at_once_and_keep_the_rate(seed: int) -> None:
    times = list(islice(iter_burst_times(4.0, 8, Random(seed)), 8000))
    assert all(len(set(times[at:at + 8])) == 1 for at in range(0, 8000, 8))
    assert times[-1] == pytest.approx(2000, rel=0.2)


@given(SEEDS)
def test_bursts_of_random_size_keep_their_rate(seed: int) -> None:
    times = list(islice(iter_random_burst_times(2.0, 3, Random(seed)), 8000))
    assert max(Counter(times[:-3]).values()) == 3
    assert len(set(times)) == pytest.approx(4000, rel=0.1)
    assert times[-1] == pytest.approx(2000, rel=0.2)


def test_even_arrivals_have_equal_gaps() -> None:
    assert list(islice(iter_even_times(4.0), 5)) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_random_pauses_have_a_maximum() -> None:
    times = list(islice(iter_times_with_uniform_pauses(2.0, Random(0)), 1000))
    assert times[0] == 0.0
    assert all(0 <= after - before <= 2.0 for before, after in pairwise(times))
    assert times[-1] == pytest.approx(1000, rel=0.1)


def test_trace_starts_at_zero_in_time_order(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('{"at": 9, "prompt_tokens": 3, "output_tokens": 4}\n{"at": 7.5, "prompt_tokens": 1, '
                    '"output_tokens": 2, "tenant": "a"}\n')
    assert [(trace_request.at, trace_request.prompt_tokens, trace_request.output_tokens)
            for trace_request in load_trace(path)] == [(0.0, 1, 2), (1.5, 3, 4)]


@pytest.mark.parametrize("line", [
    "{", "[]", '{"at": 1}', '{"at": "x", "prompt_tokens": 1, "output_tokens": 1}',
    '{"at": NaN, "prompt_tokens": 1, "output_tokens": 1}', '{"at": 1, "prompt_tokens": 0, "output_tokens": 1}'])
def test_invalid_trace_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace"
    path.write_text(f'{{"at": 9, "prompt_tokens": 3, "output_tokens": 4}}\n{line}\n')
    with pytest.raises(ValueError, match="line 2"):
        load_trace(path)


@pytest.mark.parametrize(("data", "reason"), [(b"\n", "holds no request"), (b"\xff\xfe", "is no text in UTF-8")])
def test_invalid_trace_file_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"trace {reason}"):
        load_trace(path)
