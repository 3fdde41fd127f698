"""What a source has under a name, as it was seen a moment ago, and how to get it; and what a source is.

Knows no source.
"""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.adapters.orders import Fetch


@dataclass(frozen=True, slots=True)
class Sighting:
    size: int  # bytes that are to come
    bring: Callable[[Path], None]  # both files into a folder; raises Refused, ValueError or OSError
    stamp: Hashable = None  # what is seen with the same stamp is the same; None: it may not be
    token: str = ""  # that it took to see it; empty: anybody may
    private: bool = False


class Source(Protocol):
    is_far: bool  # whether looking takes so long that the last answer may stand for it

    def tokens(self, asked: Fetch) -> tuple[str, ...]:
        """Which it would try, in this order."""

    def look(self, asked: Fetch) -> AbstractContextManager[Sighting]:
        """Raises Refused, as `unreachable` if it cannot be said what is there."""

    def nearby(self, asked: Fetch) -> Sighting | None:
        """What there is of it on this machine, for who cannot look."""
