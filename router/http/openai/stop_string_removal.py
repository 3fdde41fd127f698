"""Stop strings left out of the text, as OpenAI's clients expect. The engine ends a text right after a stop string, and
other dialects keep it there."""

from collections.abc import Iterable
from functools import lru_cache

from router.engine.output_stream import FinishedEvent
from router.request import FinishReason


class StopStringHoldback:
    """Holds back the end of a streamed text as long as it may turn out to be the beginning of a stop string."""

    __slots__ = ("_held_back", "_matchers")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self._matchers = [StopStringPrefixMatcher(string) for string in stop_strings]
        self._held_back = ""

    def feed(self, text: str) -> str:
        """Take the next piece of a text; return what is certainly part of it."""
        num_held = max((matcher.feed(text) for matcher in self._matchers), default=0)
        text = self._held_back + text
        self._held_back = text[len(text) - num_held:]
        return text[:len(text) - num_held]

    def flush(self) -> str:
        """Return what is held back."""
        held_back, self._held_back = self._held_back, ""
        for matcher in self._matchers:
            matcher.reset()
        return held_back


class StopStringPrefixMatcher:
    """Length of the longest end of a growing text with which a stop string begins, in constant time per character
    (Knuth, Morris and Pratt): this runs for every token of a stream."""

    __slots__ = ("_length", "_shorter_lengths", "_string")

    def __init__(self, string: str) -> None:
        self._string = string
        self._shorter_lengths = compute_failure_table(string)
        self._length = 0

    def feed(self, text: str) -> int:
        length, string, shorter_lengths = self._length, self._string, self._shorter_lengths
        for character in text:
            while length and string[length] != character:
                length = shorter_lengths[length]
            if string[length] == character:
                length += 1
            if length == len(string):  # complete where it stops nothing, such as before `min_tokens`
                length = shorter_lengths[length]
        self._length = length
        return length

    def reset(self) -> None:
        self._length = 0


@lru_cache(maxsize=256)
def compute_failure_table(string: str) -> tuple[int, ...]:
    """Return for each length of a beginning of the string the next shorter one that also ends it."""
    lengths, length = [0, 0], 0
    for character in string[1:]:
        while length and string[length] != character:
            length = lengths[length]
        length += string[length] == character
        lengths.append(length)
    return tuple(lengths)


def trim_stop_string(event: FinishedEvent, stop_strings: Iterable[str]) -> str:
    """Return the whole text without the stop string that ended it; of several, without the longest."""
    if not (event.is_stopped or event.finish_reason is FinishReason.STOP_STRING):
        return event.text
    return event.text[:len(event.text) - max((len(string) for string in stop_strings if event.text.endswith(string)),
                                             default=0)]
