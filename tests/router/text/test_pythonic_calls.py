"""Calls as a list of Python: values of every kind, pieces of every size, and text that is no such list."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.pythonic_calls import MAX_CHARACTERS, MAX_DEPTH, PythonicCallParser
from router.text.response_parser import ContentPiece, ParsedToolCall, parse_complete_response

TOOLS = [{"function": {"name": name}} for name in ("get_weather", "stop", "a.b")]
PARIS, STOP = ParsedToolCall("get_weather", '{"city": "Paris"}'), ParsedToolCall("stop", "{}")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6)


def parse_every_way(text, **options):
    """Return the parts of an answer, which are the same cut at every place."""
    whole = parse_complete_response(PythonicCallParser(TOOLS, **options), [text])
    for place in range(len(text)):
        assert parse_complete_response(PythonicCallParser(TOOLS, **options), [text[:place], text[place:]]) == whole
    assert parse_complete_response(PythonicCallParser(TOOLS, **options), [*text]) == whole
    return whole


@pytest.mark.parametrize(("text", "parts"), [
    ('[get_weather(city="Paris")]', [PARIS]), ("[get_weather(city='Paris',), stop()]", [PARIS, STOP]),
    (' \n<|python_start|>[ get_weather( city = "Paris" ) , stop( ) ]<|python_end|>', [PARIS, STOP]),
    ('[get_weather(city="Paris")] Done.', [PARIS, ContentPiece(" Done.")]),
    ('[stop()]<|python_end|><|python', [STOP, ContentPiece("<|python")]),
    ("[stop()]<|pyth", [STOP, ContentPiece("<|pyth")]),
    ("[a.b(x=[1, -2.5, 1e2], y={'k': (true, None)}, z='a\\n\\'\\x41\\u00e9\\d]')]", [ParsedToolCall(
        "a.b", json.dumps({"x": [1, -2.5, 100.0], "y": {"k": [True, None]}, "z": "a\n'A\u00e9\\d]"},
                          ensure_ascii=False))])])
def test_list_of_calls_is_parsed(text, parts):
    assert parse_every_way(text) == parts


@pytest.mark.parametrize("text", [
    "Hello [you].", "[1, 2]", "[]", "[get_weather]", '[get_weather(city="Paris"', "[get_weather(city=Paris)]",
    "[stop()",
    "[get_weather('Paris')]", "[other()]", "[stop(), other()]", "Well: [stop()]", "[stop() stop()]", "[stop(a=1 b=2)]",
    "[stop(a=1e999)]", "[stop(a={1: 2})]", "[stop(a=-)]", "[stop(a=f())]", "<|python_start|>x", "[stop(]", "  ", "",
    "[stop(a=" + "9" * 5000 + ")]"])
def test_what_is_no_list_of_known_calls_is_text(text):
    assert parse_every_way(text[:300]) == ([ContentPiece(text[:300])] if text else [])
    assert parse_complete_response(PythonicCallParser(TOOLS), [text]) == ([ContentPiece(text)] if text else [])


@given(arguments=st.dictionaries(st.sampled_from(["a", "b_1", "C"]), VALUES, max_size=3), seed=st.integers(0, 99))
def test_arguments_are_those_that_python_writes(arguments, seed):
    """The oracle is Python itself: `repr` writes what is read."""
    text = f"[get_weather({', '.join(f'{name}={value!r}' for name, value in arguments.items())})]"
    sizes, pieces = random.Random(seed), []
    while text:
        size = sizes.randint(1, 9)
        pieces, text = [*pieces, text[:size]], text[size:]
    [call] = parse_complete_response(PythonicCallParser(TOOLS), pieces)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", arguments)


def test_text_is_returned_as_soon_as_it_can_be_no_call():
    parser = PythonicCallParser(TOOLS)
    assert [parser.feed(piece) for piece in ("[", "get", "_w", "x", " y")] == [
        [], [], [], [], [ContentPiece("[get_wx y")]]
    parser = PythonicCallParser(TOOLS)
    assert [parser.feed(piece) for piece in ("[othe", "r(", "1")] == [
        [], [ContentPiece("[other(")], [ContentPiece("1")]]


def test_calls_beyond_the_maximum_are_left_out():
    assert parse_every_way("[stop(), stop()]", max_calls=1) == [STOP]


@pytest.mark.parametrize("text", ["[stop(a=" + "[" * MAX_DEPTH + "]" * MAX_DEPTH + ")]",
                                  f'[stop(a="{"x" * MAX_CHARACTERS}")]'])
def test_long_and_deep_lists_are_text(text):
    for size in (1000, len(text)):
        pieces = [text[place:place + size] for place in range(0, len(text), size)]
        assert parse_complete_response(PythonicCallParser(TOOLS), pieces) == [ContentPiece(text)]


def test_any_function_may_be_called_if_none_are_named():
    assert parse_complete_response(PythonicCallParser(), ["[other()]"]) == [ParsedToolCall("other", "{}")]
