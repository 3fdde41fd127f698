"""Interface of an adapter source, and the version that a source currently has under a name."""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from launcher.adapters.protocol import Fetch


@dataclass(frozen=True, slots=True)
class Sighting:
    size: int  # bytes still to be fetched
    bring: Callable[[Path], None]  # fetch both files into a folder; raises Refused, ValueError or OSError
    stamp: Hashable = None  # equal stamps mean equal contents; None if nothing guarantees that
    token: str = ""  # the token that was needed to read it; empty if it is public
    private: bool = False


class Source(Protocol):
    is_far: bool  # whether asking the source is slow, so that its last answer may be reused

    def tokens(self, asked: Fetch) -> tuple[str, ...]:
        """Return the tokens that the source tries, in this order."""

    def look(self, asked: Fetch) -> AbstractContextManager[Sighting]:
        """Return what the source has under the name. Raises Refused, of kind `unreachable` if that is not known."""

    def nearby(self, asked: Fetch) -> Sighting | None:
        """Return a copy on this machine, for use when the source is unreachable, or None."""
