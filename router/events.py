"""What the core tells the engine after each call: facts about sequences, by number."""

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


@dataclass(slots=True)  # not frozen: one is made for every token, and freezing triples the price
class Produced:
    """The first `count` tokens of the sequence's row in the answer were accepted."""

    sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Finished:
    sequence: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    sequence: int
    reason: str


Event = Entered | Refused | Produced | Finished | Failed
