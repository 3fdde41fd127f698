"""Markdown on a terminal while it is still being written: bold, code and headings, wrapped at words.

Only what models write in chats is known: `**bold**`, `` `code` ``, fenced code and headings. Lists and tables stay as
they are. Markers that turn out to be none, as in `x**2`, are written as they came; bold and code end with their line.
"""

from collections.abc import Iterator
from unicodedata import east_asian_width

BOLD, CODE, PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
MIN_FENCE, MAX_HEADING = 3, 6  # backticks of a fence, and hashes of a heading
WIDE = "WF"  # classes of characters that take two columns, between which lines may be broken


class MarkdownRenderer:
    """Renderer of one answer, which comes in parts of any size."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0  # where the next character is written
        self._word = ""  # since the last blank, with styles; written once it is known whether it fits into the line
        self._word_width = 0  # columns of the word
        self._head: str | None = ""  # beginning of the line while its kind is unknown; None afterwards
        self._marker = ""  # asterisks or backticks of which the meaning is not known yet
        self._previous = "\n"  # last character of the text before the marker
        self._fence = 0  # backticks of the fence around the code that is being written; 0 outside
        self._code = 0  # backticks that opened inline code; 0 outside
        self._is_bold = self._is_heading = False

    def feed(self, part: str) -> str:
        """Return what can be written of the text so far."""
        return "".join(text for character in part for text in self._take(character))

    def finish(self) -> str:
        """Return the rest, and end every style."""
        rest = "".join(self._end_text())
        is_open, self._fence = bool(self._fence), 0
        return rest + PLAIN * is_open

    def _take(self, character: str) -> Iterator[str]:
        if character == "\n":
            yield from self._end_line()
        elif self._head is not None:
            self._head += character
            yield from self._decide_kind()
        elif self._fence:
            yield character
        else:
            yield from self._take_inline(character)

    # -- kinds of lines

    def _decide_kind(self) -> Iterator[str]:
        """Release the beginning of a line as soon as the line can be neither a fence nor a heading."""
        assert self._head is not None
        text = self._head.lstrip(" ")
        ticks = len(text) - len(text.lstrip("`"))
        hashes = len(text) - len(text.lstrip("#"))
        if self._fence:
            may_be_marker = not text.strip("` ")
        elif ticks:
            may_be_marker = ticks == len(text) or (ticks >= MIN_FENCE and "`" not in text[ticks:])
        else:
            may_be_marker = not text or (hashes == len(text) and hashes <= MAX_HEADING)
        if may_be_marker:
            return
        if not self._fence and 0 < hashes <= MAX_HEADING and text[hashes] == " ":
            self._head, self._is_heading = None, True
            self._add_style()
        else:
            yield from self._release_head()

    def _release_head(self) -> Iterator[str]:
        head, self._head = self._head or "", None
        if self._fence:
            yield head
        else:
            for character in head:
                yield from self._take_inline(character)

    def _end_line(self) -> Iterator[str]:
        if is_fence := self._is_fence_line():
            self._fence = 0 if self._fence else is_fence
            yield CODE if self._fence else PLAIN
        else:
            yield from (*self._end_text(), "\n")
        self._column, self._head, self._previous = 0, "", "\n"

    def _is_fence_line(self) -> int:
        """Return the number of backticks if the line opens or closes fenced code, else 0."""
        if self._head is None:
            return 0
        text = self._head.strip()
        ticks = len(text) - len(text.lstrip("`"))
        is_marker = ticks == len(text) and ticks >= self._fence if self._fence else ticks >= MIN_FENCE
        return ticks if is_marker else 0

    def _end_text(self) -> Iterator[str]:
        """Write what is held back, and end the styles of the line."""
        if self._is_fence_line():  # at the end of an answer; the fence itself is not shown
            self._head = None
            return
        if self._head is not None:
            yield from self._release_head()
        if not self._fence:
            self._resolve_marker("\n")
            if self._is_bold or self._code or self._is_heading:
                self._is_bold = self._is_heading = False
                self._code = 0
                self._add_style()
            yield from self._end_word()

    # -- text

    def _take_inline(self, character: str) -> Iterator[str]:
        if character in "*`" and (not self._marker or self._marker[0] == character):
            self._marker += character
            return
        self._resolve_marker(character)
        if character in "*`":
            self._marker = character
        elif character.isspace():
            yield from self._end_word()
            yield from self._write_blank(character)
            self._previous = character
        else:
            yield from self._add_to_word(character)
            self._previous = character

    def _resolve_marker(self, following: str) -> None:
        """Take the marker as the beginning or end of a style, or as text."""
        marker, self._marker = self._marker, ""
        if not marker:
            return
        if marker[0] == "`" and self._code in {0, len(marker)}:
            self._code = 0 if self._code else len(marker)
            self._add_style()
        elif marker == "**" and not self._code and (
                not self._previous.isspace() if self._is_bold else
                not (following.isspace() or self._previous.isalnum())):
            self._is_bold = not self._is_bold
            self._add_style()
        else:
            self._word, self._word_width = self._word + marker, self._word_width + len(marker)
            self._previous = marker[-1]

    def _add_style(self) -> None:
        """Let the styles that hold now begin at the end of the word."""
        self._word += PLAIN + BOLD * (self._is_bold or self._is_heading) + CODE * bool(self._code)

    def _add_to_word(self, character: str) -> Iterator[str]:
        is_wide = east_asian_width(character) in WIDE
        self._word, self._word_width = self._word + character, self._word_width + 1 + is_wide
        if is_wide or self._word_width >= self._width:
            yield from self._end_word()

    def _end_word(self) -> Iterator[str]:
        word, width, self._word, self._word_width = self._word, self._word_width, "", 0
        if self._column and self._column + width > self._width:
            self._column = 0
            yield "\n"
        self._column += width
        yield word

    def _write_blank(self, blank: str) -> Iterator[str]:
        if self._column < self._width:  # none at the end of a full line
            self._column += 1
            yield blank
