"""Trace of requests, their arrival times and output lengths: from a recording, or from a plain list in JSON lines.

A line of a plain trace is an object with `at` (seconds), `prompt_tokens` and `output_tokens`. It may have
`max_new_tokens`, `priority`, `tenant`, `timeout` and `leaves_after` (seconds), and `prefix` with `prefix_tokens`:
requests of one prefix begin with the same tokens.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

from router.block_hash import block_hashes
from router.recording.file import BadRecording, Call, Recording
from router.recording.redact import ENDS, NOTHING, heard
from router.recording.replay import Audience, Replay, Result
from router.request import Request, Tenant
from router.scheduler.events import Event, Failed, Finished
from router.scheduler.plan import Plan
from router.scheduler.scheduler import Scheduler
from router.simulation.report import Figures
from router.simulation.timing import Pace, Timing


@dataclass(slots=True)
class Arrival:
    at: float  # seconds since the beginning
    request: Request
    output_tokens: int
    leaves_after: float | None = None  # seconds
    is_known: bool = True  # False if the request was in the scheduler before the recording began
    noticed_after: float = 0.0  # seconds to the next `plan`; until then the router handled other requests or text


@dataclass(slots=True)
class Trace:
    arrivals: list[Arrival]
    figures: Figures | None = None  # as recorded
    pace: Pace | None = None
    following: dict[bytes, list[bytes]] = field(default_factory=dict)  # by block hash: the hashes that followed it

    def hasher(self) -> Callable[[bytes, Rows[int], int], Rows[bytes]]:
        """Return a hasher that repeats the recorded hashes of blocks; a block without one gets a unique hash."""
        left = {before: deque(names) for before, names in self.following.items()}
        number = 0

        def name(before: bytes) -> bytes:
            nonlocal number
            if names := left.get(before):
                return names.popleft()
            number += 1
            return block_hashes(before, [number], 1)[0]

        def chain(before: bytes, tokens: Rows[int], size: int) -> list[bytes]:
            """Return hashes for the blocks that the tokens fill; only the number of tokens counts, all are zeros."""
            names = [before]
            for _ in range(len(tokens) // size):
                names.append(name(names[-1]))
            return names[1:]

        return chain


def read_trace(path: Path) -> Trace:
    try:
        return Listener(Recording(path)).trace()
    except BadRecording:
        if not is_plain(path):
            raise
        return plain_trace(path)


# -- plain lists


def is_plain(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(lines.readline())
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "prompt_tokens" in first


def plain_trace(path: Path) -> Trace:
    arrivals = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            arrivals.append(plain_arrival(number, json.loads(line)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadRecording(f"{path}: line {number} is no request of a trace ({error!r})") from None
    return Trace(sorted(arrivals, key=lambda arrival: arrival.at))


def plain_arrival(number: int, line: dict[str, Any]) -> Arrival:
    length, output = int(line["prompt_tokens"]), int(line["output_tokens"])
    if length < 1 or output < 1:
        raise ValueError("prompt_tokens and output_tokens must be at least 1")
    prefix = str(line.get("prefix", ""))
    names = tuple(prefix_names(prefix, int(line.get("prefix_tokens", 0)), length)) if prefix else ()
    request = Request(
        f"{number}", (NOTHING,) * length, max(output, int(line.get("max_new_tokens", output))), end_tokens=ENDS,
        priority=int(line.get("priority", 0)), tenant=Tenant(str(line.get("tenant", ""))), timeout=line.get("timeout"),
        namespace=prefix.encode(), block_hashes=names)
    return Arrival(float(line["at"]), request, output, line.get("leaves_after"))


def prefix_names(prefix: str, shared: int, length: int, size: int = 16) -> Iterator[bytes]:
    """Yield the hashes of the blocks that the prefix fills; `size` is the usual block size."""
    name = prefix.encode()
    for place in range(min(shared, length) // size):
        [name] = block_hashes(name, [place], 1)
        yield name


# -- recordings


class Listener(Audience):
    """Observer of a replay that builds a trace."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._figures = Figures()
        self._timing = Timing()
        self._arrivals: dict[int, Arrival] = {}
        self._refused: list[Arrival] = []
        self._ended: set[int] = set()
        self._unnoticed: list[Arrival] = []
        self._following: dict[bytes, list[bytes]] = {}

    def trace(self) -> Trace:
        outcome = Replay(self._recording, self).run()
        if outcome.difference is not None:
            raise BadRecording(f"the recording does not replay, so nothing is learned from it: {outcome.difference}")
        self._figures.ended = outcome.ended
        self._guess_what_is_left()
        arrivals = sorted([*self._arrivals.values(), *self._refused], key=lambda arrival: arrival.at)
        return Trace(arrivals, self._figures, self._timing.pace(self._core.costs), self._following)

    # -- called during the replay

    def begins(self, core: Scheduler, now: float) -> None:
        self._figures.began, self._core = now, core
        for sequence in core.sequences:
            request, done = sequence.request, len(sequence.generated)
            least = min(1, request.max_new_tokens)
            left = replace(request, prompt=(NOTHING,) * sequence.length, timeout=None,
                           max_new_tokens=max(least, request.max_new_tokens - done))
            self._arrivals[sequence.number] = Arrival(0.0, left, 0, is_known=False)
            self._figures.is_there(sequence.number)

    def names(self, before: bytes, names: Rows[bytes]) -> None:
        for one, following in pairwise([before, *names]):
            self._following.setdefault(one, []).append(following)

    def hears(self, call: Call, result: Result, core: Scheduler) -> None:
        if call.name == "plan":
            self._notice(call.at - self._figures.began)
        if isinstance(result, Plan):
            self._figures.planned(result, call.at)
            self._timing.planned(core.last_load, call.at)
        elif isinstance(result, list):
            self._hear_events(call, result)

    def _notice(self, now: float) -> None:
        for arrival in self._unnoticed:
            arrival.noticed_after = now - arrival.at
        self._unnoticed.clear()

    def _hear_events(self, call: Call, events: list[Event]) -> None:
        match call.name:
            case "submit":
                self._submitted(call, events)
            case "complete":
                self._timing.answered(call.given[2], call.at)
                self._figures.heard(events, call.at)
            case "shards_lost":
                self._timing.lost()
                self._figures.shards_lost()
            case "cancel":
                self._left(call.given[0], call.at)
        self._ended.update(event.sequence for event in events if isinstance(event, Finished | Failed))

    def _submitted(self, call: Call, events: list[Event]) -> None:
        number = self._figures.submitted(events, call.at)
        arrival = Arrival(call.at - self._figures.began, heard(call.given[0]), 0)
        if number is None:
            self._refused.append(arrival)
        else:
            self._arrivals[number] = arrival
            self._unnoticed.append(arrival)

    def _left(self, number: int, now: float) -> None:
        """Record a cancellation.

        A request that had tokens is assumed to want no more than those; one that had none is assumed to be cancelled
        after the same time in every simulation.
        """
        if number in self._arrivals and number not in self._ended and not self._figures.tokens_of(number):
            self._arrivals[number].leaves_after = now - self._figures.began - self._arrivals[number].at
        self._ended.add(number)

    def _guess_what_is_left(self) -> None:
        """Set `output_tokens`: the number recorded, or the median of the requests with tokens if none was recorded.

        The median is limited by `max_new_tokens`. A request unfinished at the end keeps the number recorded until then.
        """
        tokens = {number: self._figures.tokens_of(number) for number in self._arrivals}
        usual = median_low([count for count in tokens.values() if count] or [1])
        for number, arrival in self._arrivals.items():
            arrival.output_tokens = tokens[number] or min(usual, arrival.request.max_new_tokens)
        for arrival in self._refused:
            arrival.output_tokens = min(usual, arrival.request.max_new_tokens)
