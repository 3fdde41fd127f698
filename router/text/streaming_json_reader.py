"""Reading of an object or list of JSON in a text that comes in pieces, up to its end or to what is no JSON."""

import re
import string

STRING_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
SCALAR = re.compile(rf"true|false|null|{NUMBER}")
SCALAR_BEGINNING = re.compile(r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?|"
                              r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?")
MAX_SCALAR_CHARACTERS = 400  # of a number; a longer one is no JSON
NUM_HEX_DIGITS = 4  # of an escape
CLOSING_BRACKETS = {"{": "}", "[": "]"}


class StreamingJsonReader:
    """Reader of one object or list. What it takes is a beginning of valid JSON, wherever the text is cut into
    pieces."""

    def __init__(self) -> None:
        self._is_finished = False
        self._closings: list[str] = []  # brackets that are open, innermost last
        # What may come: a value, an item or key (the first of its kind: or the bracket that closes), a colon, what
        # follows a value; or the place within a string or scalar.
        self._state = "value"
        self._is_key = False  # whether the string is a key
        self._scalar = ""  # beginning of a number, `true`, `false` or `null`, or digits of an escape

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is taken: the value is complete, or what follows is no JSON."""
        return self._is_finished

    @property
    def is_complete(self) -> bool:
        """Whether the value is complete."""
        return self._is_finished and not self._closings and self._state == "behind"

    def take(self, piece: str) -> str:
        """Return the beginning of the piece that belongs to the value."""
        place = 0
        while place < len(piece) and not self._is_finished:
            place = self._read_string(piece, place) if self._state == "string" else place + self._step(piece[place])
        return piece[:place]

    def _read_string(self, piece: str, place: int) -> int:
        match = STRING_CHARACTERS.match(piece, place)
        assert match is not None, "the pattern matches any text"
        if (end := match.end()) == len(piece):
            return end
        if piece[end] == '"':
            self._state = "colon" if self._is_key else "behind"
        elif piece[end] == "\\":
            self._state = "escape"
        else:
            self._is_finished = True
            return end
        return end + 1

    def _step(self, character: str) -> int:
        """Return 1 if the character was read, 0 if it has to be read again in another state, or does not fit."""
        if self._state in {"escape", "hex"}:
            return self._read_escape(character)
        if self._state == "scalar":
            return self._read_scalar(character)
        if character in " \t\n\r":
            return 1
        if self._state == "behind" and character == ",":
            self._state = "key" if self._closings[-1] == "}" else "value"
            return 1
        if self._state in {"behind", "first key", "first item"} and character == self._closings[-1]:
            self._closings.pop()
            self._state, self._is_finished = "behind", not self._closings
            return 1
        return self._open(character)

    def _read_escape(self, character: str) -> int:
        if self._state == "escape":
            self._state, self._scalar = "hex" if character == "u" else "string", ""
            return self._accept(is_valid=character in '"\\/bfnrtu')
        self._scalar += character
        self._state = "string" if len(self._scalar) == NUM_HEX_DIGITS else "hex"
        return self._accept(is_valid=character in string.hexdigits)

    def _read_scalar(self, character: str) -> int:
        scalar = self._scalar + character
        if SCALAR_BEGINNING.fullmatch(scalar) and len(scalar) <= MAX_SCALAR_CHARACTERS:
            self._scalar = scalar
            return 1
        self._state = "behind"
        self._accept(is_valid=SCALAR.fullmatch(self._scalar) is not None)
        return 0

    def _open(self, character: str) -> int:
        """Read the first character of a key, colon or value."""
        takes_key, takes_value = self._state in {"key", "first key"}, self._state in {"value", "first item"}
        if not self._closings and character not in CLOSING_BRACKETS:
            return self._accept(is_valid=False)
        if character == '"' and (takes_key or takes_value):
            self._state, self._is_key = "string", takes_key
        elif character == ":" and self._state == "colon":
            self._state = "value"
        elif character in CLOSING_BRACKETS and takes_value:
            self._closings.append(CLOSING_BRACKETS[character])
            self._state = "first key" if character == "{" else "first item"
        elif takes_value and SCALAR_BEGINNING.fullmatch(character):
            self._state, self._scalar = "scalar", character
        else:
            return self._accept(is_valid=False)
        return 1

    def _accept(self, *, is_valid: bool) -> int:
        self._is_finished = not is_valid
        return int(is_valid)
