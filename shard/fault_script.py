"""Scripted faults of the simulated shard: which call fails, how, and whether that has happened yet.

A script is a list of faults joined by semicolons. `kind@verb`, `kind@verb:nth` and `kind@verb:nth:argument` strike the
nth call of a verb, once; `poison@token` strikes every step that holds a prompt with this token. `worker.py` implements
the effects.
"""

import re
from collections import Counter
from dataclasses import dataclass

FAULT_VERBS = ("warmup", "reset", "prefill", "decode", "filter", "concat", "embed", "load", "unload")
STEP_VERBS = ("prefill", "decode", "embed")
ANSWER_DEFECTS = ("unknown", "missing", "token", "count")
SECONDS_PATTERN = r"\d+\.?\d*|\.\d+"
# By kind of fault: the verbs that it may strike, its default argument, and the regular expression of its arguments.
FAULT_KINDS = {
    "die": (FAULT_VERBS, "", ""),  # the process ends
    "hang": (FAULT_VERBS, "", ""),  # no answer until the worker is closed
    "refuse": (FAULT_VERBS, "", ""),  # the message is rejected
    "step_error": (FAULT_VERBS, "", ""),  # the call raises
    "exhaust": (STEP_VERBS, "", ""),  # there is no memory for the step
    "late": (STEP_VERBS, "0.1", SECONDS_PATTERN),  # by which the answer is late; later messages are not delayed
    "slow": (STEP_VERBS, "0.1", SECONDS_PATTERN),  # that the step takes longer
    "fail_sequence": (STEP_VERBS, "0", r"\d+"),  # which of the step's sequences (decodes first) or texts fails
    "wrong": (STEP_VERBS, "unknown", "|".join(ANSWER_DEFECTS)),  # what is wrong with the answer
}


@dataclass(slots=True)
class Fault:
    """One scripted fault: what goes wrong at which call of a verb, and whether it has happened."""

    kind: str
    verb: str
    nth_call: int
    argument: str
    has_fired: bool = False


class FaultScript(tuple[Fault, ...]):
    """Faults of a script, and how often each verb was called."""

    num_calls: Counter[str]

    def __new__(cls, script: str) -> "FaultScript":
        faults = super().__new__(cls, [parse_fault(part.strip()) for part in script.split(";") if part.strip()])
        faults.num_calls = Counter()
        return faults

    def take_due_faults(self, verb: str) -> list[Fault]:
        """Count one more call of the verb and return its faults."""
        self.num_calls[verb] += 1
        due = [fault for fault in self if fault.verb == verb and fault.nth_call == self.num_calls[verb]]
        for fault in due:
            fault.has_fired = True
        return due


def parse_fault(text: str) -> Fault:
    kind, _, target = text.partition("@")
    if kind == "poison" and target.isdecimal():
        return Fault(kind, "", 0, target)
    verbs, default, argument_pattern = FAULT_KINDS.get(kind, ((), "", ""))
    verb, nth, argument = (*target.split(":", 2), "", "")[:3]
    argument = argument or default
    if verb not in verbs or not re.fullmatch(r"\d*", nth) or not re.fullmatch(argument_pattern, argument):
        raise ValueError(f"not a fault: {text!r}; write kind@verb:nth:argument, such as slow@decode:3:0.5, with a kind "
                         f"of {', '.join(FAULT_KINDS)}, or poison@token")
    return Fault(kind, verb, int(nth or 1), argument)
