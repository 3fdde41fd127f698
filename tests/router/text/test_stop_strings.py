"""Stop strings in text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.stop_strings import StopStrings

letters = st.text("ab", max_size=6)


def fed(strings, pieces):
    stop_strings = StopStrings(tuple(strings))
    return next((end for piece in pieces if (end := stop_strings.feed(piece)) is not None), None)


@pytest.mark.slow
@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=4), st.lists(letters, max_size=8))
def test_finds_what_searching_the_whole_text_finds(strings, pieces):
    text = "".join(pieces)
    ends = [text.find(string) + len(string) for string in strings if string in text]
    assert fed(strings, pieces) == min(ends, default=None)


def test_without_stop_strings_nothing_is_found():
    assert fed([], ["any", "thing"]) is None


def test_a_stop_string_may_end_inside_a_piece():
    assert fed(["."], ["the end", ".\n and on"]) == len("the end.")


def test_a_stop_string_may_come_one_letter_at_a_time():
    assert fed(["END"], list("the END")) == 7


def test_the_one_that_ends_first_counts_even_when_it_begins_later():
    assert fed(["abcdef", "cd"], ["abc", "def"]) == 4


def test_only_the_longest_part_that_may_be_cut_off_is_kept():
    stop_strings = StopStrings(("abc", "x"))
    for _ in range(100):
        stop_strings.feed("yyyyy")
    assert stop_strings._tail == "yy"
