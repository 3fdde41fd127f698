"""What the core tells the engine after each call: facts about sequences, by number."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.request import FinishReason


@dataclass(frozen=True, slots=True)
class Entered:
    """A request was accepted; this is its sequence's number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was not accepted; trying again is worth it after so many seconds."""

    reason: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class Produced:
    """Of these sequences' rows in the answer so many tokens were accepted. Comes before anybody's end."""

    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Finished:
    sequence: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Expired:
    """Its time ran out before it had a token."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    sequence: int
    reason: str


Event = Entered | Refused | Produced | Finished | Expired | Failed
