"""Stop strings in text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.engine.output_stream import StopStringMatcher

text_pieces = st.text("ab", max_size=6)


def find_stop_end(strings, pieces):
    stop_strings = StopStringMatcher(tuple(strings))
    return next((end for piece in pieces if (end := stop_strings.find_match_end(piece)) is not None), None)


@pytest.mark.slow
@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(text_pieces, max_size=8))
def test_pieces_find_what_searching_the_whole_text_finds(strings, pieces):
    text = "".join(pieces)
    ends = [text.find(string) + len(string) for string in strings if string in text]
    assert find_stop_end(strings, pieces) == min(ends, default=None)


def test_nothing_is_found_without_stop_strings():
    assert find_stop_end([], ["any", "thing"]) is None


def test_a_stop_string_may_end_inside_a_piece():
    assert find_stop_end(["."], ["the end", ".\n and on"]) == len("the end.")


def test_stop_string_may_arrive_one_letter_at_a_time():
    assert find_stop_end(["END"], list("the END")) == 7


def test_stop_string_that_ends_first_counts_even_if_it_starts_later():
    assert find_stop_end(["abcdef", "cd"], ["abc", "def"]) == 4


def test_only_the_longest_possible_partial_match_is_kept():
    stop_strings = StopStringMatcher(("abc", "x"))
    for _ in range(100):
        stop_strings.find_match_end("yyyyy")
    assert stop_strings._tail == "yy"
