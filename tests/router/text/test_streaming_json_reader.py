"""Objects and lists in pieces of every size, their ends, and text that is no JSON. The oracle is `json`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.streaming_json_reader import MAX_SCALAR_CHARACTERS, StreamingJsonReader

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                      | st.text(max_size=4),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
                      max_leaves=8)
OBJECTS_AND_LISTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3) | st.lists(VALUES, max_size=3)


def take_in_pieces(text: str, size: int) -> str:
    reader = StreamingJsonReader()
    return "".join(reader.take(text[place:place + size]) for place in range(0, len(text), size))


@given(value=OBJECTS_AND_LISTS, rest=st.text("{}[]\",: a1"), size=st.integers(1, 9),
       indent=st.sampled_from([None, 0, 2]), is_ascii=st.booleans())
def test_object_or_list_is_taken_up_to_its_end(value: object, rest: str, size: int, indent: int | None,
                                               is_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    assert take_in_pieces(text + rest, size) == text
    reader = StreamingJsonReader()
    states = []
    for piece in (text[:-1], text[-1], rest):
        reader.take(piece)
        states.append((reader.is_finished, reader.is_complete))
    assert states == [(False, False), (True, True), (True, True)]


def test_what_is_no_json_is_not_complete() -> None:
    for text in ("x", '"a"', "[1}", '{"a"}'):
        reader = StreamingJsonReader()
        assert reader.take(text) != text
        assert (reader.is_finished, reader.is_complete) == (True, False)


def closes_to_json(text: str) -> bool:
    """Return whether some ending makes JSON of a text."""
    closings = ["", "1", '"', 'a"', "0", "0000", '":1', ":1", '"":1', "e", "l", "ue", "se", "rue", "alse", "lse", "ull",
                "ll", ',"":1']
    stack, in_string, escaped = [], False, False
    for character in text:
        if escaped or in_string:
            escaped, in_string = not escaped and character == "\\", escaped or character != '"'
        elif character == '"':
            in_string = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "]}" and stack:
            stack.pop()
    ends = ["".join(reversed(stack))] if text.startswith(("{", "[")) else []
    prefixes = ['"', 'n"', '0"', '00"', '000"', '0000"']
    for end in ends:
        for closing in [*closings, *prefixes, *[f'{prefix}:1' for prefix in prefixes]]:
            try:
                json.loads(text + closing + end, parse_constant=lambda name: 1 / 0)
            except (ValueError, ZeroDivisionError):
                continue
            return True
    return False


@given(text=st.text(st.sampled_from('{}[]",: \\untrue1-.e0a\n'), max_size=12), size=st.integers(1, 5),
       opening=st.sampled_from("{["))
def test_what_is_taken_is_the_longest_beginning_of_json(text: str, size: int, opening: str) -> None:
    text = opening + text
    taken = take_in_pieces(text, size)
    assert text.startswith(taken)
    assert closes_to_json(taken)
    try:
        json.loads(taken)
    except ValueError:
        assert taken == text or not closes_to_json(text[:len(taken) + 1])


@pytest.mark.parametrize(("text", "taken"), [
    ('{"a": NaN}', '{"a": '), ('{"a": 01}', '{"a": 0'), ('{"a": 1.}', '{"a": 1.'), ('{"a": -}', '{"a": -'),
    ('{"a": trux}', '{"a": tru'), ('{"a" 1}', '{"a" '), ("{a: 1}", "{"), ('{"a": "\n"}', '{"a": "'),
    ('{"a": "\\x"}', '{"a": "\\'), ('{"a": "\\u00g', '{"a": "\\u00'), ('{"a": 1,}', '{"a": 1,'), ("{,", "{"),
    ('{"a": [1 2]}', '{"a": [1 '), ('{"a": [}', '{"a": ['), ('{"a": 1]', '{"a": 1'),
    ('{"a": {"b": 1}}}', '{"a": {"b": 1}}'),
    ('{"a": ' + "9" * 500, '{"a": ' + "9" * MAX_SCALAR_CHARACTERS), ("{}{}", "{}"),
    (' "a"', " "), ("1", ""), ("true", ""), ("]", ""), (" [1]]", " [1]")])
def test_what_is_no_json_ends_the_value(text: str, taken: str) -> None:
    assert [take_in_pieces(text, size) for size in (1, 2, 1000)] == [taken] * 3


def test_deep_objects_are_read() -> None:
    text = '{"a":' * 100_000 + "1" + "}" * 100_000
    assert StreamingJsonReader().take(text) == text
