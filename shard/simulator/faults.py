"""Scripted faults of the simulated shard: which call fails, how, and whether that has happened yet.

A script is a list of faults joined by semicolons. `kind@verb`, `kind@verb:nth` and `kind@verb:nth:argument` strike the
nth call of a verb, once; `poison@token` strikes every step that holds a prompt with this token. `worker.py`
implements the effects.
"""

from collections import Counter
from dataclasses import dataclass

VERBS = ("warmup", "reset", "prefill", "decode", "filter", "concat", "embed", "load", "unload")
STEPS = ("prefill", "decode", "embed")
WRONGS = ("unknown", "missing", "token", "count")
# By kind of fault: the verbs that it may strike, and its default argument.
KINDS = {
    "die": (VERBS, ""),  # the process ends
    "hang": (VERBS, ""),  # no answer until the worker is closed
    "refuse": (VERBS, ""),  # the message is rejected
    "step_error": (VERBS, ""),  # the call raises
    "exhaust": (STEPS, ""),  # there is no memory for the step
    "late": (STEPS, "0.1"),  # seconds by which the answer is late, while later messages are not delayed
    "slow": (STEPS, "0.1"),  # seconds that the step takes longer
    "fail_sequence": (STEPS, "0"),  # which of the step's sequences fails, decodes first, then chunks; or texts
    "wrong": (STEPS, "unknown"),  # what is wrong with the answer, one of WRONGS
}


@dataclass(slots=True)
class Fault:
    kind: str
    verb: str
    nth: int
    argument: str
    fired: bool = False


class Faults(tuple[Fault, ...]):
    """Faults of a script, and how often each verb was called."""

    calls: Counter[str]

    def __new__(cls, script: str) -> "Faults":
        faults = super().__new__(cls, [parse_fault(part.strip()) for part in script.split(";") if part.strip()])
        faults.calls = Counter()
        return faults

    def strike(self, verb: str) -> list[Fault]:
        """Count one more call of the verb and return its faults."""
        self.calls[verb] += 1
        due = [fault for fault in self if fault.verb == verb and fault.nth == self.calls[verb]]
        for fault in due:
            fault.fired = True
        return due


def parse_fault(text: str) -> Fault:
    kind, _, where = text.partition("@")
    if kind == "poison" and where.isdecimal():
        return Fault(kind, "", 0, where)
    verbs, default = KINDS.get(kind, ((), ""))
    verb, nth, argument = (*where.split(":", 2), "", "")[:3]
    fault = Fault(kind, verb, int(nth) if nth.isdecimal() else 1, argument or default)
    if verb not in verbs or not (nth.isdecimal() or not nth) or not _fits(fault):
        raise ValueError(f"not a fault: {text!r}; write kind@verb:nth:argument, such as slow@decode:3:0.5, with a kind "
                         f"of {', '.join(KINDS)}, or poison@token")
    return fault


def _fits(fault: Fault) -> bool:
    if fault.kind == "wrong":
        return fault.argument in WRONGS
    if fault.kind == "fail_sequence":
        return fault.argument.isdecimal()
    if fault.kind in {"slow", "late"}:
        return fault.argument.replace(".", "", 1).isdecimal()
    return not fault.argument
