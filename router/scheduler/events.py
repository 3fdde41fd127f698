"""Events that the scheduler returns to the engine from each call. Sequences are identified by number."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.request import FinishReason


@dataclass(frozen=True, slots=True)
class Entered:
    """Acceptance of a request, as the sequence with this number."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Rejection of a request; a retry may succeed after `retry_after` seconds."""

    reason: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class Produced:
    """Number of accepted tokens per sequence in one answer. Precedes the events of sequences that end with it."""

    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Finished:
    sequence: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Expired:
    """Timeout of a sequence that has no token yet."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    sequence: int
    reason: str


Event = Entered | Refused | Produced | Finished | Expired | Failed
