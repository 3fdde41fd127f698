"""Synthetic benchmark runs: records of responses with evenly spaced tokens, and results of such records."""

from array import array
from collections.abc import Sequence
from typing import Any

from benchmarks.bench.load.record import Ask, Record
from benchmarks.bench.report.result import Result
from benchmarks.bench.report.summary import Goal, summary

WINDOW = 0.0, 10.0


def answer(sent: float = 0.0, first: float = 0.1, gap: float = 0.01, tokens: int = 5, **others: Any) -> Record:
    """Return the record of a streamed response that ends with its last token."""
    times = array("d", [sent + first + gap * place for place in range(tokens)])
    ask = Ask(others.pop("number", 1), "hello", tokens, adapter=others.pop("adapter", ""))
    return Record(ask, sent, times[-1], times, tokens, status=200, **others)


def whole(sent: float = 0.0, ended: float = 1.0, tokens: int = 5) -> Record:
    """Return the record of a response that was not streamed."""
    return Record(Ask(1, "hello", tokens), sent, ended, num_tokens=tokens, status=200)


def refusal(sent: float = 0.0, error: str = "429 overloaded") -> Record:
    return Record(Ask(1, "hello", 5), sent, sent + 0.001, status=429, error=error)


def result(records: Sequence[Record], name: str = "A", goal: Goal | None = None, **others: Any) -> Result:
    facts: dict[str, Any] = {
        "command": "weft bench", "settings": {"rate": 8.0}, "date": "2025-01-31", "hardware": "a loom, 2 cores",
        "versions": {"weft": "0.1.0"}, "overhead": {"% of a core": 12.3, "us a token": 18.2}, "window": WINDOW,
        **others}
    return Result(name, summary=summary(records, facts["window"], goal), records=records, **facts)


def run(name: str = "A", gap: float = 0.01) -> Result:
    """Return a result of 40 responses of 5 to 44 tokens and one rejected request."""
    records = [answer(sent=0.2 * number, first=0.05 + number / 1000, gap=gap, tokens=5 + number, number=number)
               for number in range(40)]
    return result([*records, refusal(1.0)], name)
