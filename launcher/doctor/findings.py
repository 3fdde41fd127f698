"""Findings of `weft doctor`: one line per check, with a cure if there is a problem."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    state: State
    text: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.state:8} {self.subject:14} {self.text}" + (f"; {self.cure}" if self.cure else "")


def fine(subject: str, text: str) -> Finding:
    return Finding(subject, "ok", text)


def unless(good: bool, subject: str, text: str, cure: str, state: State = "warning") -> Finding:
    return fine(subject, text) if good else Finding(subject, state, text, cure)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if there is a problem, else 0: a warning is no problem."""
    return int(any(finding.state == "problem" for finding in findings))


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
