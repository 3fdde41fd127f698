"""Flags of `weft bench` as words: which of them go together, and what a second run takes from the first.

A flag that would change nothing is refused: what was measured would not be what was asked for. Knows of no value what
it means.
"""

import shlex
from collections.abc import Iterator, Sequence
from itertools import combinations

BELONGS = (("burst", "rate"), ("even", "rate"), ("speed", "trace"), ("prefixes", "shared_prefix"), ("turns", "versus"))
EXCLUDED = (  # of each group only one may be given
    ("concurrency", "rate", "trace", "wait"), ("even", "burst"), ("prompts", "prompt_tokens"),
    ("prompts", "shared_prefix"), ("prompts", "tokenizer"), ("trace", "prompt_tokens"), ("trace", "output_tokens"),
    ("numsamples", "requests"), ("numtokens_range", "output_tokens"))
UNHEARD = {  # by which dialects nothing of the kind can be said
    "adapters": ("batching",), "model": ("batching", "tgi", "lorax"), "sampling": ("batching",),
    "stop_at_end": ("batching", "tgi")}
PAIRS = frozenset(pair for group in EXCLUDED for pair in combinations(group, 2))
SECRET, SECOND = "api_key", "versus"
UNDERLINED = "numtokens_range"  # as the original's client spells it


def flag_of(name: str) -> str:
    return f"--{name if name == UNDERLINED else name.replace('_', '-')}"


def name_of(word: str) -> str:
    """Of a setting, from its flag, with a value or without."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def names_in(words: Sequence[str]) -> set[str]:
    return {name_of(word) for word in words if word.startswith("--")}


def check_pairs(given: set[str]) -> None:
    """Settings that have another value than by default, wherever they come from."""
    for one, other in sorted(PAIRS):
        if {one, other} <= given:
            raise ValueError(f"{flag_of(one)} and {flag_of(other)} cannot be combined: give one of them")


def check_effect(names: set[str], given: set[str], dialect: str) -> None:
    """Of flags that this run was given itself: what a second one takes over from the first may have no effect."""
    for modifier, base in BELONGS:
        if modifier in names and base not in given:
            raise ValueError(f"{flag_of(modifier)} only applies with {flag_of(base)}, which is not given")
    for name in sorted(names & given & UNHEARD.keys()):
        if dialect in UNHEARD[name]:
            raise ValueError(f"{flag_of(name)}: a request of --dialect {dialect} has no field for it")


def replaced(own: Sequence[str]) -> set[str]:
    """Settings of a first run that a second one does without, given its own flags."""
    names = names_in(own)
    rivals = {name for pair in PAIRS for name in pair if names & set(pair)}
    return {SECOND, "turns", *names, *rivals}


def shown(words: Sequence[str]) -> str:
    """As one line that may be shown around: keys are secret."""
    masked, rest = [], iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        masked.append(word)
        if name_of(word) in {SECRET, SECOND} and word.startswith("--"):
            value = value if equals else next(rest, "")
            value = shown(shlex.split(value)) if name_of(word) == SECOND else "..."
            masked[-1:] = [f"{flag}={value}"] if equals else [flag, value]
    return shlex.join(masked)


def without(words: Sequence[str], names: set[str]) -> list[str]:
    return [word for name, group in groups(words) if name not in names for word in group]


def groups(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with all its values. A value of --versus looks like flags itself."""
    group: list[str] = []
    for word in words:
        is_value = not word.startswith("--") or (len(group) == 1 and group[0] == flag_of(SECOND))
        if group and not is_value:
            yield name_of(group[0]), group
            group = []
        group.append(word)
    if group:
        yield name_of(group[0]), group
