import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.client.terminal_markdown import BOLD, CODE, PLAIN, MarkdownRenderer

ANSI_CODE = re.compile(r"\x1b\[\d+m")
SOME_MARKDOWN = st.text(alphabet="ab2 *`#\n", max_size=60)


def render(text: str, *, width: int = 40, size: int = 1) -> str:
    stream = MarkdownRenderer(width)
    parts = [text[start:start + size] for start in range(0, len(text), size)]
    return "".join([*map(stream.feed, parts), stream.finish()])


@pytest.mark.parametrize(("text", "shown"), [
    ("plain text", "plain text"),
    ("a **bold** word", f"a {PLAIN}{BOLD}bold{PLAIN} word"),
    ("`code` and *one* star", f"{PLAIN}{CODE}code{PLAIN} and *one* star"),
    ("`a ** b`", f"{PLAIN}{CODE}a ** b{PLAIN}"),
    ("``a`b`` c", f"{PLAIN}{CODE}a`b{PLAIN} c"),
    ("x**2 + y**2", "x**2 + y**2"),
    ("5 ** 3 and **", "5 ** 3 and **"),
    ("an open **bold\nnext **line**", f"an open {PLAIN}{BOLD}bold{PLAIN}\nnext {PLAIN}{BOLD}line{PLAIN}"),
    ("an open `code\nnext", f"an open {PLAIN}{CODE}code{PLAIN}\nnext"),
    ("# Title\ntext", f"{PLAIN}{BOLD}Title{PLAIN}\ntext"),
    ("#tag and # mark", "#tag and # mark"),
    ("```python\nx = 1 * 2\n\n# no title\n```\nend", f"{CODE}x = 1 * 2\n\n# no title\n{PLAIN}end"),
    ("1. Do:\n   ```py\n   a ** b\n   ```\nend", f"1. Do:\n{CODE}   a ** b\n{PLAIN}end"),
    ("````\n```\ncode\n````\nend", f"{CODE}```\ncode\n{PLAIN}end"),
    ("```\n```py\n```\nend", f"{CODE}```py\n{PLAIN}end"),
    ("```ls -la``` alone\nnext", f"{PLAIN}{CODE}ls -la{PLAIN} alone\nnext"),
    ("```\nno end", f"{CODE}no end{PLAIN}"),
    ("```\ncode\n```", f"{CODE}code\n{PLAIN}"),
    ("- item\n- **b**", f"- item\n- {PLAIN}{BOLD}b{PLAIN}"),
])
def test_markdown_becomes_styles(text: str, shown: str) -> None:
    assert render(text) == shown


def test_lines_are_wrapped_at_words_and_code_is_not() -> None:
    assert render("one two three four", width=9) == "one two \nthree \nfour"
    assert render("**one two** three", width=9) == f"{PLAIN}{BOLD}one two{PLAIN} \nthree"
    assert render("```\none two three four\n```", width=9) == f"{CODE}one two three four\n{PLAIN}"


def test_text_without_blanks_is_streamed() -> None:
    stream = MarkdownRenderer(10)
    assert [stream.feed(character) for character in "天地玄黄宇宙"] == ["天", "地", "玄", "黄", "宇", "\n宙"]
    assert stream.feed("x" * 25) == "\nxxxxxxxxxx\nxxxxxxxxxx"


@given(SOME_MARKDOWN, st.integers(1, 7))
def test_parts_of_any_size_give_the_same(text: str, size: int) -> None:
    assert render(text, size=size) == render(text)


@given(SOME_MARKDOWN)
def test_letters_are_never_lost_and_every_style_ends(text: str) -> None:
    shown = render(text)
    if "```" not in text:  # the line of a fence, which may name a language, is not shown
        assert re.sub(r"[^ab2]", "", ANSI_CODE.sub("", shown)) == re.sub(r"[^ab2]", "", text)
    codes = ANSI_CODE.findall(shown)
    assert not codes or codes[-1] == PLAIN
