"""Findings of `weft doctor`: one line per check, with a cure if there is a problem."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FindingState = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check: ok, a warning or a problem, and how to cure it."""

    subject: str
    state: FindingState
    text: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.state:8} {self.subject:14} {self.text}" + (f"; {self.cure}" if self.cure else "")


def make_ok_finding(subject: str, text: str) -> Finding:
    return Finding(subject, "ok", text)


def make_finding_unless(is_ok: bool, subject: str, text: str, cure: str, state: FindingState = "warning") -> Finding:
    return make_ok_finding(subject, text) if is_ok else Finding(subject, state, text, cure)


def compute_exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 if there is a problem, else 0: a warning is no problem."""
    return int(any(finding.state == "problem" for finding in findings))


def format_gib(num_bytes: float) -> str:
    """Return a size in GiB, a small one in MiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 / 10 else f"{num_bytes / 2**20:.1f} MiB"
