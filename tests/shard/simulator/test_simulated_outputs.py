from collections.abc import Sequence as GenericSequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.simulator.simulated_outputs import (
    BLANK_TOKEN,
    END_TOKEN,
    WORDS,
    BlockTags,
    CacheTags,
    KVCacheMismatch,
    SimulatedTokens,
)
from shard.state.result_encoding import PromptLogprobs
from shard.state.sequence import SamplingParams, Sequence
from shard.state.step import PrefillChunk


def make_sequence(tokens: GenericSequence[int] = (1, 2, 3), blocks: GenericSequence[int] = (0, 1), cached: int = 0,
                  **identity: int) -> Sequence:
    identity = {"sampling_key": 0, "adapter_id": 0, "grammar_id": 0} | identity
    return Sequence(id=7, tokens=list(tokens), num_prompt_tokens=len(tokens), num_tokens_to_prefill=len(tokens),
                    num_computed_tokens=cached, num_cached_tokens=cached, blocks=list(blocks),
                    sampling=SamplingParams(), wants_prompt_logprobs=False, **identity)


def get_tokens(simulated_text: SimulatedTokens, length: int) -> list[int]:
    return [simulated_text.get_token(index) for index in range(length)]


def test_there_are_64_words_of_five_letters() -> None:
    assert len(set(WORDS)) == 64
    assert {len(word) for word in WORDS} == {5}


def test_text_is_words_and_blanks() -> None:
    text = bytes(get_tokens(SimulatedTokens(make_sequence(), 0, 0.0), 600))
    assert set(text.split()) <= set(WORDS)
    assert text[5::6] == b" " * 100


@pytest.mark.parametrize("changes", [
    {"tokens": [1, 2, 4]}, {"tokens": [1, 2]}, {"sampling_key": 1}, {"adapter_id": 1}, {"grammar_id": 1}], ids=str)
def test_text_depends_on_prompt_key_adapter_and_grammar(changes: dict[str, object]) -> None:
    assert get_tokens(SimulatedTokens(make_sequence(), 0, 0.0),
                      60) != get_tokens(SimulatedTokens(make_sequence(**changes), 0, 0.0), 60)


def test_text_depends_on_the_seed() -> None:
    assert get_tokens(SimulatedTokens(make_sequence(), 0, 0.0),
                      60) != get_tokens(SimulatedTokens(make_sequence(), 1, 0.0), 60)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50))
def test_text_does_not_depend_on_the_order_of_calls(indices: list[int]) -> None:
    simulated_text, other_text = SimulatedTokens(make_sequence(), 0, 12.0), SimulatedTokens(make_sequence(), 0, 12.0)
    assert {i: simulated_text.generate_tokens(i, 1)
            for i in indices} == {i: other_text.generate_tokens(i, 1) for i in sorted(indices)}


@given(st.integers(1, 8), st.integers(0, 100))
def test_tokens_of_one_step_are_a_piece_of_the_text(room: int, start: int) -> None:
    simulated_text = SimulatedTokens(make_sequence(), 0, 12.0)
    tokens, logprobs = simulated_text.generate_tokens(start, room)
    assert 1 <= len(tokens) == len(logprobs) <= room
    assert tokens == [simulated_text.get_token(start + i) for i in range(len(tokens))]
    assert END_TOKEN not in tokens[:-1]


@given(st.lists(st.integers(0, 256), max_size=20), st.integers(0, 20))
def test_text_behind_foreign_tokens_depends_on_all_tokens_and_not_on_where_it_went_on(foreign: list[int],
                                                                                      length: int) -> None:
    simulated_text, other_text = SimulatedTokens(make_sequence(), 0, 12.0), SimulatedTokens(make_sequence(), 0, 12.0)
    simulated_text.continue_from_tokens(foreign)
    tokens = foreign + [simulated_text.get_token(len(foreign) + i) for i in range(length)]
    other_text.continue_from_tokens(tokens)
    assert [simulated_text.get_token(len(tokens) + i)
            for i in range(60)] == [other_text.get_token(len(tokens) + i) for i in range(60)]


def test_text_behind_its_own_tokens_is_its_own_and_another_behind_foreign_ones() -> None:
    own = get_tokens(SimulatedTokens(make_sequence(), 0, 0.0), 100)
    continuations = []
    for last_token in (own[19], own[19] + 1, own[19] + 2):
        simulated_text = SimulatedTokens(make_sequence(), 0, 0.0)
        simulated_text.continue_from_tokens([*own[:19], last_token])
        continuations.append(get_tokens(simulated_text, 100)[20:])
    assert continuations[0] == own[20:]
    assert len({*map(bytes, continuations)}) == 3


def test_end_tokens_come_after_words_at_the_configured_rate() -> None:
    tokens = get_tokens(SimulatedTokens(make_sequence(), 0, 60.0), 60_000)
    assert set(tokens[5::6]) == {BLANK_TOKEN, END_TOKEN}
    assert 800 < tokens.count(END_TOKEN) < 1200


def test_logprobs_are_exact_in_float32() -> None:
    values = SimulatedTokens(make_sequence(), 0, 0.0).generate_tokens(0, 8)[1]
    assert all(-2.0 < value < 0.0 and (value * 128).is_integer() for value in values)


# -- the cache


def write_to_cache(cache: BlockTags, sequence: Sequence, num_computed: int,
                   cache_tags: CacheTags | None = None) -> CacheTags:
    cache_tags = cache_tags or CacheTags(sequence, 16)
    sequence.num_computed_tokens = num_computed
    cache_tags.write_tags(sequence, cache)
    return cache_tags


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_cache_tags_do_not_depend_on_chunking(lengths: list[int]) -> None:
    tokens = list(range(sum(lengths)))
    unchunked, chunked, cache = make_sequence(tokens, range(20)), make_sequence(tokens, range(20, 40)), [None] * 40
    cache_tags = CacheTags(chunked, 16)
    for end in range(1, len(lengths) + 1):
        write_to_cache(cache, chunked, sum(lengths[:end]), cache_tags)
        cache_tags.check_tags(chunked, cache)
    write_to_cache(cache, unchunked, len(tokens))
    assert cache[:20] == cache[20:]


def test_cached_prefix_passes_the_cache_check() -> None:
    cache: BlockTags = [None] * 8
    write_to_cache(cache, make_sequence(list(range(20)), [0, 1]), 20)
    reader = make_sequence(list(range(20)), [0, 2], cached=16)
    write_to_cache(cache, reader, 20).check_tags(reader, cache)


@pytest.mark.parametrize("changes", [{"tokens": [9] * 20}, {"adapter_id": 1}, {"blocks": [5, 2]}], ids=str)
def test_wrong_values_in_a_cached_prefix_are_detected(changes: dict[str, object]) -> None:
    cache: BlockTags = [None] * 8
    write_to_cache(cache, make_sequence([1] * 20, [0, 1]), 20)
    reader = make_sequence(**{"tokens": [1] * 20, "blocks": [0, 2], "cached": 16} | changes)
    with pytest.raises(KVCacheMismatch, match="holds something else"):
        write_to_cache(cache, reader, 20).check_tags(reader, cache)


def test_block_overwritten_by_another_sequence_is_detected_on_write() -> None:
    cache: BlockTags = [None] * 8
    sequence, other_sequence = make_sequence([1] * 20, [0, 1]), make_sequence([2] * 20, [0, 2])
    cache_tags = write_to_cache(cache, sequence, 5)
    write_to_cache(cache, other_sequence, 5)
    with pytest.raises(KVCacheMismatch, match="written by another"):
        write_to_cache(cache, sequence, 6, cache_tags)


def test_full_block_overwritten_by_another_sequence_is_detected_on_read() -> None:
    cache: BlockTags = [None] * 8
    sequence, other_sequence = make_sequence([1] * 20, [0, 1]), make_sequence([2] * 20, [0, 2])
    cache_tags = write_to_cache(cache, sequence, 16)
    write_to_cache(cache, other_sequence, 5)
    with pytest.raises(KVCacheMismatch, match="holds something else"):
        cache_tags.check_tags(sequence, cache)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=6))
def test_prompt_logprobs_do_not_depend_on_chunking(lengths: list[int]) -> None:
    tokens, cache = list(range(sum(lengths))), [None] * 8

    def make_prompt_sequence() -> Sequence:
        sequence = make_sequence(tokens, range(8))
        sequence.num_prompt_top_tokens = 2
        return sequence

    sequence = make_prompt_sequence()
    whole = CacheTags(sequence, 16).make_prompt_logprobs(PrefillChunk(sequence, 0, len(tokens)))
    sequence = make_prompt_sequence()
    cache_tags, start = CacheTags(sequence, 16), 0
    parts = []
    for length in lengths:
        parts.append(cache_tags.make_prompt_logprobs(PrefillChunk(sequence, start, length)))
        start += length
        write_to_cache(cache, sequence, start, cache_tags)
    assert [part.start_index for part in parts] == [1 + sum(lengths[:i]) for i in range(len(lengths))]
    assert whole == PromptLogprobs(1, [value for part in parts for value in part.logprobs],
                                   [top for part in parts for top in part.top_tokens],
                                   [top for part in parts for top in part.top_logprobs])
    assert [top[0] for top in whole.top_tokens] == tokens[1:]
    assert [top[0] for top in whole.top_logprobs] == whole.logprobs
