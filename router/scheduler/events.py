"""Events that the scheduler returns to the engine from each call. Sequences are identified by their ids."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.request import FinishReason


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """Acceptance of a request, as the sequence with this id."""

    sequence_id: int


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """Rejection of a request; a retry may succeed after `retry_after` seconds."""

    reason: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class TokensGenerated:
    """Number of accepted tokens per sequence in one answer. Precedes the events of sequences that end with it."""

    token_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """End of a sequence with a result."""

    sequence_id: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class SequenceExpired:
    """Timeout of a sequence that has no token yet."""

    sequence_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """Failure of a sequence, with the reason."""

    sequence_id: int
    reason: str


SchedulerEvent = (RequestAccepted | RequestRejected | TokensGenerated | SequenceFinished | SequenceExpired
                  | SequenceFailed)
