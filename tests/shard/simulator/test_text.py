from collections.abc import Sequence as Rows

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.simulator.text import BLANK, END, WORDS, Cache, MixUp, Tale, Trace
from shard.state.sequence import Sampling, Sequence


def sequence(tokens: Rows[int] = (1, 2, 3), blocks: Rows[int] = (0, 1), cached: int = 0, **who: int) -> Sequence:
    who = {"key": 0, "adapter": 0, "grammar": 0} | who
    return Sequence(id=7, tokens=list(tokens), num_prompt_tokens=len(tokens), num_given=len(tokens), computed=cached,
                    num_cached=cached, blocks=list(blocks), sampling=Sampling(), prompt_logprobs=False, **who)


def told(tale: Tale, length: int) -> list[int]:
    return [tale.token(index) for index in range(length)]


def test_there_are_64_words_of_five_letters() -> None:
    assert len(set(WORDS)) == 64
    assert {len(word) for word in WORDS} == {5}


def test_a_tale_is_words_and_blanks() -> None:
    text = bytes(told(Tale(sequence(), 0, 0.0), 600))
    assert set(text.split()) <= set(WORDS)
    assert text[5::6] == b" " * 100


@pytest.mark.parametrize("other", [
    {"tokens": [1, 2, 4]}, {"tokens": [1, 2]}, {"key": 1}, {"adapter": 1}, {"grammar": 1}], ids=str)
def test_another_asker_hears_another_tale(other: dict[str, object]) -> None:
    assert told(Tale(sequence(), 0, 0.0), 60) != told(Tale(sequence(**other), 0, 0.0), 60)


def test_another_seed_tells_another_tale() -> None:
    assert told(Tale(sequence(), 0, 0.0), 60) != told(Tale(sequence(), 1, 0.0), 60)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50))
def test_the_order_of_asking_makes_no_difference(indices: list[int]) -> None:
    tale, again = Tale(sequence(), 0, 12.0), Tale(sequence(), 0, 12.0)
    assert {i: tale.say(i, 1) for i in indices} == {i: again.say(i, 1) for i in sorted(indices)}


@given(st.integers(1, 8), st.integers(0, 100))
def test_a_burst_is_a_piece_of_the_tale(room: int, start: int) -> None:
    tale = Tale(sequence(), 0, 12.0)
    tokens, logprobs = tale.say(start, room)
    assert 1 <= len(tokens) == len(logprobs) <= room
    assert tokens == [tale.token(start + i) for i in range(len(tokens))]
    assert END not in tokens[:-1]


def test_ends_come_after_words_and_as_often_as_wanted() -> None:
    tokens = told(Tale(sequence(), 0, 60.0), 60_000)
    assert set(tokens[5::6]) == {BLANK, END}
    assert 800 < tokens.count(END) < 1200


def test_logprobs_are_the_same_as_floats_of_32_bits() -> None:
    values = Tale(sequence(), 0, 0.0).say(0, 8)[1]
    assert all(-2.0 < value < 0.0 and (value * 128).is_integer() for value in values)


# -- the cache


def write(cache: Cache, one: Sequence, computed: int, trace: Trace | None = None) -> Trace:
    trace = trace or Trace(one, 16)
    one.computed = computed
    trace.write(one, cache)
    return trace


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_what_was_written_in_parts_reads_as_what_was_written_at_once(lengths: list[int]) -> None:
    tokens = list(range(sum(lengths)))
    whole, parts, cache = sequence(tokens, range(20)), sequence(tokens, range(20, 40)), [None] * 40
    trace = Trace(parts, 16)
    for end in range(1, len(lengths) + 1):
        write(cache, parts, sum(lengths[:end]), trace)
        trace.read(parts, cache)
    write(cache, whole, len(tokens))
    assert cache[:20] == cache[20:]


def test_a_cached_prefix_reads_as_if_it_had_been_computed() -> None:
    cache: Cache = [None] * 8
    write(cache, sequence(list(range(20)), [0, 1]), 20)
    other = sequence(list(range(20)), [0, 2], cached=16)
    write(cache, other, 20).read(other, cache)


@pytest.mark.parametrize("other", [{"tokens": [9] * 20}, {"adapter": 1}, {"blocks": [5, 2]}], ids=str)
def test_what_another_left_in_a_cached_prefix_is_noticed(other: dict[str, object]) -> None:
    cache: Cache = [None] * 8
    write(cache, sequence([1] * 20, [0, 1]), 20)
    reader = sequence(**{"tokens": [1] * 20, "blocks": [0, 2], "cached": 16} | other)
    with pytest.raises(MixUp, match="holds something else"):
        write(cache, reader, 20).read(reader, cache)


def test_a_block_that_another_wrote_to_is_noticed_when_writing_goes_on() -> None:
    cache: Cache = [None] * 8
    one, other = sequence([1] * 20, [0, 1]), sequence([2] * 20, [0, 2])
    trace = write(cache, one, 5)
    write(cache, other, 5)
    with pytest.raises(MixUp, match="written by another"):
        write(cache, one, 6, trace)


def test_a_full_block_that_another_wrote_to_is_noticed_when_read() -> None:
    cache: Cache = [None] * 8
    one, other = sequence([1] * 20, [0, 1]), sequence([2] * 20, [0, 2])
    trace = write(cache, one, 16)
    write(cache, other, 5)
    with pytest.raises(MixUp, match="holds something else"):
        trace.read(one, cache)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=6))
def test_logprobs_of_a_prompt_do_not_depend_on_the_chunks(lengths: list[int]) -> None:
    tokens, cache = list(range(sum(lengths))), [None] * 8
    whole = Trace(sequence(tokens), 16).prompt_logprobs(sequence(tokens), len(tokens))
    parts, one = [], sequence(tokens, range(8))
    trace = Trace(one, 16)
    for end in [sum(lengths[:i + 1]) for i in range(len(lengths))]:
        parts += trace.prompt_logprobs(one, end)
        write(cache, one, end, trace)
    assert parts == whole
    assert len(whole) == len(tokens) - 1
