"""Markdown on a terminal while it is still being written: bold, code and headings, wrapped at words.

Only what models write in chats is known: `**bold**`, `` `code` ``, fenced code and headings. Lists and tables stay as
they are. Markers that turn out to be none, such as a single asterisk, are written as they came.
"""

from collections.abc import Iterator

BOLD, CODE, PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
FENCE, HEADING = "```", "#"


class MarkdownStream:
    """Renderer of one answer, which comes in parts of any size."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0  # where the next character is written
        self._word = ""  # since the last blank; written once it is known whether it fits into the line
        self._word_width = 0  # characters of the word that take a place
        self._marker = ""  # asterisks, or the beginning of a line, of which the meaning is not known yet
        self._is_line_start = True
        self._is_bold = self._is_code = self._is_heading = self._is_fenced = False

    def feed(self, part: str) -> str:
        """Return what can be written of the text so far."""
        return "".join(text for character in part for text in self._take(character))

    def finish(self) -> str:
        """Return the rest, and end every style."""
        if self._is_fenced and self._is_line_start and self._marker == FENCE:
            self._marker = ""  # the end of the code, without a line behind it
        rest = "".join([*self._end_marker(), *self._end_word()])
        is_styled = self._is_bold or self._is_code or self._is_heading or self._is_fenced
        self._is_bold = self._is_code = self._is_heading = self._is_fenced = False
        return rest + PLAIN * is_styled

    def _take(self, character: str) -> Iterator[str]:
        if character == "\n":
            yield from self._end_line()
        elif self._is_line_start and (self._marker + character).startswith(("`", HEADING)):
            yield from self._take_line_start(character)
        elif self._is_fenced:
            self._is_line_start = False
            yield from (*self._end_marker(), character)
        elif character == "*" and not self._is_code:
            self._is_line_start = False
            self._marker += character
            if self._marker == "**":
                self._marker, self._is_bold = "", not self._is_bold
                self._add_style()
        else:
            self._is_line_start = False
            yield from self._end_marker()
            if character == "`":
                self._is_code = not self._is_code
                self._add_style()
            elif character.isspace():
                yield from self._end_word()
                yield from self._write(character, 1)
            else:
                self._word, self._word_width = self._word + character, self._word_width + 1

    def _take_line_start(self, character: str) -> Iterator[str]:
        """Collect the first characters of a line while they may be a fence or a heading."""
        marker = self._marker + character
        if marker in {"`", "``", FENCE} or not marker.strip(HEADING):
            self._marker = marker
        elif marker.startswith(FENCE):  # the language of the code
            self._marker += character
        elif marker.startswith(HEADING) and character == " " and not self._is_fenced:
            self._marker, self._is_heading, self._is_line_start = "", True, False
            self._add_style()
        else:
            marker, self._marker, self._is_line_start = self._marker, "", False
            for letter in marker + character:
                yield from self._take(letter)

    def _end_line(self) -> Iterator[str]:
        if self._is_line_start and self._marker.startswith(FENCE):
            self._marker, self._is_fenced = "", not self._is_fenced
            yield CODE if self._is_fenced else PLAIN
            return
        yield from (*self._end_marker(), *self._end_word())
        if self._is_heading:
            self._is_heading = False
            yield PLAIN
        self._column, self._is_line_start = 0, True
        yield "\n"

    def _end_marker(self) -> Iterator[str]:
        """Take a marker that is none as text."""
        marker, self._marker = self._marker, ""
        if self._is_fenced:
            yield marker
        else:
            self._word, self._word_width = self._word + marker, self._word_width + len(marker)

    def _add_style(self) -> None:
        """Let the styles that hold now begin at the end of the word."""
        self._word += PLAIN + BOLD * (self._is_bold or self._is_heading) + CODE * self._is_code

    def _end_word(self) -> Iterator[str]:
        word, width, self._word, self._word_width = self._word, self._word_width, "", 0
        if self._column and self._column + width > self._width:
            self._column = 0
            yield "\n"
        yield from self._write(word, width)

    def _write(self, text: str, width: int) -> Iterator[str]:
        if text.isspace() and self._column >= self._width:
            return  # a blank at the end of a full line
        self._column += width
        yield text
