"""Stop strings left out of the text, as OpenAI's clients expect. The engine ends a text right after a stop string, and
other dialects keep it there."""

from collections.abc import Iterable

from router.engine.stream import FinishedEvent
from router.request import FinishReason


class StopStringTrimmer:
    """Holds back the end of a streamed text as long as it may turn out to be the beginning of a stop string."""

    __slots__ = ("_held_back", "_stop_strings")

    def __init__(self, stop_strings: Iterable[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._held_back = ""

    def feed(self, text: str) -> str:
        """Take the next piece of a text in which no stop string is complete; return what is certainly part of it."""
        text = self._held_back + text
        num_held = max((count_held_characters(text, string) for string in self._stop_strings), default=0)
        self._held_back = text[len(text) - num_held:]
        return text[:len(text) - num_held]

    def flush(self) -> str:
        """Return what is held back."""
        held_back, self._held_back = self._held_back, ""
        return held_back


def count_held_characters(text: str, stop_string: str) -> int:
    """Return the length of the longest end of the text that a stop string begins with."""
    for length in range(min(len(text), len(stop_string) - 1), 0, -1):
        if text.endswith(stop_string[:length]):
            return length
    return 0


def trim_stop_string(event: FinishedEvent, stop_strings: Iterable[str]) -> str:
    """Return the whole text without the stop string that ended it; of several, without the longest."""
    if event.finish_reason is not FinishReason.STOP_STRING:
        return event.text
    return event.text[:len(event.text) - max((len(string) for string in stop_strings if event.text.endswith(string)),
                                             default=0)]
