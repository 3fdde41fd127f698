import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.client.markdown import BOLD, CODE, PLAIN, MarkdownStream

ANSI_CODE = re.compile(r"\x1b\[\d+m")


def render(text: str, *, width: int = 40, size: int = 1) -> str:
    stream = MarkdownStream(width)
    parts = [text[start:start + size] for start in range(0, len(text), size)]
    return "".join([*map(stream.feed, parts), stream.finish()])


@pytest.mark.parametrize(("text", "shown"), [
    ("plain text", "plain text"),
    ("a **bold** word", f"a {PLAIN}{BOLD}bold{PLAIN} word"),
    ("`code` and *one* star", f"{PLAIN}{CODE}code{PLAIN} and *one* star"),
    ("`a ** b`", f"{PLAIN}{CODE}a ** b{PLAIN}"),
    ("# Title\ntext", f"{PLAIN}{BOLD}Title{PLAIN}\ntext"),
    ("#tag and # mark", "#tag and # mark"),
    ("```python\nx = 1 * 2\n\n# no title\n```\nend", f"{CODE}x = 1 * 2\n\n# no title\n{PLAIN}end"),
    ("``a", f"{PLAIN}{CODE}{PLAIN}a"),
    ("- item\n- **b**", f"- item\n- {PLAIN}{BOLD}b{PLAIN}"),
    ("an open **bold", f"an open {PLAIN}{BOLD}bold{PLAIN}"),
    ("2 * 3 = 6*", "2 * 3 = 6*"),
])
def test_markdown_becomes_styles(text: str, shown: str) -> None:
    assert render(text) == shown


def test_lines_are_wrapped_at_words_and_code_is_not() -> None:
    assert render("one two three four", width=9) == "one two \nthree \nfour"
    assert render("averyveryverylongword x", width=9) == "averyveryverylongword\nx"
    assert render("**one two** three", width=9) == f"{PLAIN}{BOLD}one two{PLAIN} \nthree"
    assert render("```\none two three four\n```", width=9) == f"{CODE}one two three four\n{PLAIN}"


@given(st.text(alphabet="ab *`#\n", max_size=60), st.integers(1, 7))
def test_parts_of_any_size_give_the_same_and_letters_are_never_lost(text: str, size: int) -> None:
    shown = render(text, size=size)
    assert shown == render(text)
    letters = [character for character in text if character in "ab"]
    kept = [character for character in ANSI_CODE.sub("", shown) if character in "ab"]
    # the line of a fence names a language, which is not shown
    assert kept == letters or "```" in text


@given(st.text(alphabet="ab *`#\n", max_size=60))
def test_every_style_ends(text: str) -> None:
    codes = ANSI_CODE.findall(render(text))
    assert not codes or codes[-1] == PLAIN
