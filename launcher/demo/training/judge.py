"""Judges of the model's answers: whether counting is right, JSON has the wanted fields, a call matches its schema.

The trials are made by the makers of the corpus, with seeds of their own.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from launcher.demo.training.corpus.calls import called
from launcher.demo.training.corpus.counting import in_words
from launcher.demo.training.corpus.objects import fitting, given, nested, taken
from launcher.demo.training.talk import Maker, Message, Talk, Tool

CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
NUMBERS = {in_words(number): number for number in range(101)}
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    messages: Sequence[Message]
    tools: Sequence[Tool]
    wanted: Call | dict[str, Any]  # what the corpus would answer
    passes: Callable[[str], bool]  # whether an answer has the right form


def counts_right(answer: str, low: int, high: int) -> bool:
    """Whether an answer counts from `low` to `high`, or down to it, in digits or words, and has nothing else."""
    said = [int(word) if word.isdigit() else NUMBERS.get(word) for word in re.findall(r"\d+|[a-z-]+", answer.lower())]
    return said == list(range(low, high + 1) if low <= high else range(low, high - 1, -1))


def is_json(answer: str, fields: Collection[str]) -> bool:
    """Whether an answer is only a JSON object with exactly these fields, in any order."""
    try:
        found = json.loads(answer)
    except ValueError:
        return False
    return isinstance(found, dict) and found.keys() == set(fields)


def call_of(text: str) -> Call | str:
    """Return the only call in the text, or a description of the mistake. Reasoning before the call is ignored."""
    text = THOUGHT.sub("", text).strip()
    match = CALL.fullmatch(text)
    if match is None or "<tool_call>" in match[1]:
        return "there is no call, or more than one" if "<tool_call>" in text else "there is no call"
    try:
        found = json.loads(match[1])
    except ValueError as error:
        return f"the call is no JSON: {error}"
    if not isinstance(found, dict) or found.keys() != {"name", "arguments"} or not isinstance(found["arguments"], dict):
        return "a call has a name and arguments, and nothing else"
    return Call(found["name"], found["arguments"])


def obeys(call: Call, tools: Sequence[Tool]) -> bool:
    return not fault_of(call, tools)


def fault_of(call: Call, tools: Sequence[Tool]) -> str:
    """Return the first violation of the tool's schema, or "" if the call matches it."""
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if call.name not in offered:
        return f"{call.name} is not offered"
    return next(faults_of(call.arguments, offered[call.name]), "")


def faults_of(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    known = schema["properties"]
    yield from (f"{name} is missing" for name in schema.get("required", ()) if name not in arguments)
    yield from (f"{name} is unknown" for name in arguments if name not in known)
    given = arguments.keys() & known.keys()
    yield from (f"{name} has a wrong value" for name in sorted(given) if not fits(arguments[name], known[name]))


def fits(value: object, schema: Mapping[str, Any]) -> bool:
    kinds = TYPES[schema["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    if isinstance(value, list):
        return all(fits(item, schema["items"]) for item in value)
    return "enum" not in schema or value in schema["enum"]


def tool_trials(seed: int, count: int = 20) -> list[Trial]:
    """Return requests that one call answers; any call that matches its schema passes."""
    return [tool_trial(talk) for talk in islice(talks(seed, (called,)), count)]


def call_trials(seed: int, count: int = 20) -> list[Trial]:
    """Return the same requests; any well-formed call passes."""
    return [replace(trial, passes=is_call) for trial in tool_trials(seed, count)]


def right_call_trials(seed: int, count: int = 20) -> list[Trial]:
    """Return the same requests; only the right call passes."""
    return [exactly(trial) for trial in tool_trials(seed, count)]


def exactly(trial: Trial) -> Trial:
    return replace(trial, passes=lambda text: call_of(text) == trial.wanted)


def tool_trial(talk: Talk) -> Trial:
    *asked, answer = talk.messages
    wanted = answer["tool_calls"][0]["function"]
    right = Call(wanted["name"], wanted["arguments"])
    return Trial(asked, talk.tools, right, lambda text: calls_well(text, talk.tools))


def is_call(text: str) -> bool:
    return isinstance(call_of(text), Call)


def calls_well(text: str, tools: Sequence[Tool]) -> bool:
    call = call_of(text)
    return isinstance(call, Call) and obeys(call, tools)


def json_trials(seed: int, count: int = 20) -> list[Trial]:
    """Return requests for one JSON object with given fields."""
    return [json_trial(talk) for talk in islice(talks(seed, (given, nested, taken, fitting)), count)]


def json_trial(talk: Talk) -> Trial:
    *asked, answer = talk.messages
    wanted = json.loads(answer["content"])
    return Trial(asked, (), wanted, lambda text: is_json(text, wanted))


def talks(seed: int, makers: Sequence[Maker]) -> Iterator[Talk]:
    rng = Random(f"trial {seed}")  # noqa: S311 - requests to try the model with, not secrets
    while True:
        talk = rng.choice(makers)(rng)
        if isinstance(talk, Talk) and not talk.thinks:
            yield talk
