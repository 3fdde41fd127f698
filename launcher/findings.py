"""What `weft doctor` finds: one line for each thing that was looked at, with the cure where one is needed."""

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
    """1 if there is a problem; a warning is none."""
    return int(any(finding.state == "problem" for finding in findings))


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
