"""Replay of a recording: the scheduler gets the recorded calls and must make the recorded decisions.

`python -P -m router.recording.replay JSON`, an object with the `file`. A recording holds no tokens; prompts and
outputs are made of the same number of zeros, on which no decision may depend. Exit status: 0 if every decision is the
same, 1 if one differs, 2 if the recording cannot be read.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from router.recording import decision
from router.recording.core_json import differences, from_json, to_json
from router.recording.file import BadRecording, Beginning, Call, Recording, facts_of
from router.recording.redact import END, NOTHING, heard
from router.request import Resource
from router.scheduler.events import Event
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import Answer, AnswerRow, Move, Plan
from router.scheduler.scheduler import Scheduler

Result = Plan | None | list[Event] | tuple[Move, ...]
ONE_TOKEN = AnswerRow((NOTHING,), (0.0,))


class UsualRows(dict[int, AnswerRow]):
    """Rows of an answer: one token for every sequence without a row of its own."""

    def __missing__(self, number: int) -> AnswerRow:
        return ONE_TOKEN


class Audience:
    """Observer of a replay. The methods of this base class do nothing."""

    def begins(self, core: Scheduler, now: float) -> None:
        """Receive the scheduler in its state at the beginning of the recording."""

    def hears(self, call: Call, result: Result, core: Scheduler) -> None:
        """Receive a call, its result, and the scheduler after the call."""

    def names(self, before: bytes, names: Rows[bytes]) -> None:
        """Receive the hashes of the blocks that follow the block with the hash `before`."""


@dataclass(frozen=True, slots=True)
class Difference:
    number: int  # of the event, from 1
    seconds: float  # since the recording began
    call: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return (f"event {self.number} ({self.call}), {self.seconds:.3f} s after the beginning, differs\n"
                f"  recorded: {self.recorded}\n  now:      {self.now}")


@dataclass(slots=True)
class Outcome:
    num_segments: int = 0
    num_events: int = 0
    began: float = 0.0
    ended: float = 0.0
    digest: str = ""
    difference: Difference | None = None


class OutOfNames(Exception):
    """The scheduler hashes more blocks than were recorded."""


class Replay:
    """One replay of a recording, of which an `Audience` may observe every call."""

    def __init__(self, recording: Recording, audience: Audience | None = None) -> None:
        self._recording = recording
        self._audience = audience or Audience()
        self._names: deque[bytes] = deque()
        self._digest = blake2b(digest_size=8)
        self._core: Scheduler | None = None
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Replay to the end or to the first difference."""
        outcome = self.outcome
        for item in self._recording:
            difference = self._begin(item) if isinstance(item, Beginning) else self._play(item)
            outcome.ended = item.at
            if difference is not None:
                outcome.difference = Difference(outcome.num_events, item.at - outcome.began, *difference)
                break
        if self._core is None:
            raise BadRecording(f"{self._recording.path} holds no segment")
        outcome.digest = self._digest.hexdigest()
        return outcome

    def _begin(self, segment: Beginning) -> tuple[str, str, str] | None:
        self.outcome.num_segments += 1
        if self._core is None:
            self.outcome.began = segment.at
            self._core = self._restored(segment)
            self._audience.begins(self._core, segment.at)
            return None
        found = next(differences(segment.core, to_json(self._core)), None)
        return None if found is None else ("state", "the core as it stood when the next segment began", found)

    def _restored(self, segment: Beginning) -> Scheduler:
        try:
            return from_json(segment.core, self._next_names)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BadRecording(f"{self._recording.path} was written by weft {self._recording.weft}, whose core does "
                               f"not fit this one ({error!r})") from None

    def _next_names(self, before: bytes, tokens: Rows[int], size: int) -> list[bytes]:
        """Return the next recorded hashes, in place of those of `tokens`, which are zeros."""
        count = len(tokens) // size
        if count > len(self._names):
            raise OutOfNames("it names more blocks than were named")
        names = [self._names.popleft() for _ in range(count)]
        self._audience.names(before, names)
        return names

    def _play(self, call: Call) -> tuple[str, str, str] | None:
        if self._core is None or call.name not in CALLS:
            raise BadRecording(f"{self._recording.path}: event {self.outcome.num_events + 1} is a {call.name}, out of "
                               "its place or unknown to this weft")
        self.outcome.num_events += 1
        self._names.extend(call.names)
        try:
            result = CALLS[call.name](self._core, call)
        except Exception as error:  # an exception is an outcome too, and is compared with the recorded one
            now: tuple[Any, ...] = (repr(error),)
            result = None
        else:
            now = outcome_of(result)
        self._digest.update(f"{call.name}{now}".encode())
        if now != call.outcome or self._names:
            more = f", and {len(self._names)} blocks more" if self._names else ""
            return (call.name, in_words(call.outcome) + more, in_words(now))
        self._audience.hears(call, result, self._core)
        return None


def outcome_of(result: Result) -> tuple[Any, ...]:
    if isinstance(result, Plan):
        return decision.of_plan(result)
    if isinstance(result, tuple):
        return decision.of_moves(result)
    return decision.of_events(result) if result else ()


def in_words(outcome: tuple[Any, ...]) -> str:
    match outcome:
        case ():
            return "nothing"
        case (int(order), str(digest), decodes, newcomers, tokens):
            return (f"message {order}, {decodes} sequences decode, {newcomers} enter, {tokens} prompt tokens, digest "
                    f"{digest}")
        case _:
            return ", ".join(map(str, outcome))


def complete(core: Scheduler, call: Call) -> list[Event]:
    order, epoch, seconds, *rare = call.given
    lengths, ended, stopped, failed = rare or ((), (), (), ())
    tokens = {number: [NOTHING] * length for number, length in lengths}
    for number, index in ended:
        tokens.setdefault(number, [NOTHING])[index] = END
    rows = UsualRows({number: AnswerRow(row, (0.0,) * len(row)) for number, row in tokens.items()})
    return core.complete(order, Answer(epoch, seconds, rows, dict(failed)), dict(stopped), call.at)


def crash(core: Scheduler, call: Call) -> Result:
    """Repeat the call that raised when it was recorded."""
    name, *given = call.given
    return CALLS[name](core, Call(name, call.at, tuple(given)))


CALLS: Mapping[str, Callable[[Scheduler, Call], Result]] = {
    "submit": lambda core, call: core.submit(heard(call.given[0]), call.at),
    "cancel": lambda core, call: core.cancel(call.given[0], call.at),
    "hold": lambda core, call: core.hold(call.given[0], call.at),
    "resume": lambda core, call: core.resume(call.given[0], call.at),
    "available": lambda core, call: core.available(Resource(*call.given), call.at),
    "unavailable": lambda core, call: core.unavailable(Resource(*call.given[:-1]), call.given[-1], call.at),
    "removed": lambda core, call: core.removed(Resource(*call.given), call.at),
    "want": lambda core, call: core.want(Resource(*call.given), call.at),
    "drop": lambda core, call: core.drop(Resource(*call.given), call.at),
    "moves": lambda core, call: tuple(core.moves(call.at)),
    "plan": lambda core, call: core.plan(call.at),
    "complete": complete,
    "expire": lambda core, call: core.expire(call.at),
    "shards_lost": lambda core, call: core.shards_lost(call.at, Loss[call.given[0]]),
    "shards_ready": lambda core, call: core.shards_ready(facts_of(call.given[0]), call.given[1], call.at),
    "crash": crash,
}


def report(recording: Recording, outcome: Outcome, seconds: float) -> str:
    lines = [f"{outcome.num_segments} segments, {outcome.num_events:,} events, "
             f"{outcome.ended - outcome.began:.1f} s, replayed in {seconds:.1f} s"]
    if recording.is_cut:
        lines.append("the last line is incomplete and was left out")
    if outcome.difference is None:
        lines.append(f"every decision is the same, digest {outcome.digest}")
    else:
        lines.append(str(outcome.difference))
    return "\n".join(lines)


def main() -> None:
    try:
        recording = Recording(Path(json.loads(sys.argv[1])["file"]))
        started = time.monotonic()
        outcome = Replay(recording).run()
    except BadRecording as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(2) from None
    sys.stdout.write(report(recording, outcome, time.monotonic() - started) + "\n")
    raise SystemExit(outcome.difference is not None)


if __name__ == "__main__":
    main()
