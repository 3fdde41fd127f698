"""Evaluation of the demo model's answers: checks of counting, JSON and tool calls, and cases made by the corpus from
seeds of their own.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from launcher.demo.training.conversation import Conversation, DocumentMaker, Message, Tool
from launcher.demo.training.corpus.counting import write_number_in_words
from launcher.demo.training.corpus.json_answers import (
    make_extraction_conversation,
    make_nested_object_conversation,
    make_object_conversation,
    make_schema_conversation,
)
from launcher.demo.training.corpus.tool_calling.conversations import make_call_conversation

TOOL_CALL_PATTERN = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
REASONING_PATTERN = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
NUMBERS_BY_WORDS = {write_number_in_words(number): number for number in range(101)}
PYTHON_TYPES_BY_JSON_TYPE: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Tool call parsed from an answer."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EvaluationCase:
    """Prompt for the model, and the check that its answer must pass."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    expected_answer: ToolCall | dict[str, Any]  # what the corpus would answer
    accepts_answer: Callable[[str], bool]  # whether an answer has the right form


def is_correct_count(answer: str, first: int, last: int) -> bool:
    """Whether an answer counts from `first` to `last`, or down to it, in digits or words, and has nothing else."""
    numbers = [int(word) if word.isdigit() else NUMBERS_BY_WORDS.get(word)
               for word in re.findall(r"\d+|[a-z-]+", answer.lower())]
    return numbers == list(range(first, last + 1) if first <= last else range(first, last - 1, -1))


def is_json_object_with_fields(answer: str, fields: Collection[str]) -> bool:
    """Whether an answer is only a JSON object with exactly these fields, in any order."""
    try:
        value = json.loads(answer)
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() == set(fields)


def parse_tool_call(text: str) -> ToolCall | str:
    """Return the only call in the text, or a description of the mistake. Reasoning before the call is ignored."""
    text = REASONING_PATTERN.sub("", text).strip()
    match = TOOL_CALL_PATTERN.fullmatch(text)
    if match is None or "<tool_call>" in match[1]:
        return "there is no call, or more than one" if "<tool_call>" in text else "there is no call"
    try:
        fields = json.loads(match[1])
    except ValueError as error:
        return f"the call is no JSON: {error}"
    if not isinstance(fields, dict) or fields.keys() != {"name",
                                                         "arguments"} or not isinstance(fields["arguments"], dict):
        return "a call has a name and arguments, and nothing else"
    return ToolCall(fields["name"], fields["arguments"])


def is_valid_tool_call(call: ToolCall, tools: Sequence[Tool]) -> bool:
    return not find_tool_call_violation(call, tools)


def find_tool_call_violation(call: ToolCall, tools: Sequence[Tool]) -> str:
    """Return the first violation of the tool's schema, or "" if the call matches it."""
    schemas_by_tool = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if call.name not in schemas_by_tool:
        return f"{call.name} is not offered"
    return next(iterate_schema_violations(call.arguments, schemas_by_tool[call.name]), "")


def iterate_schema_violations(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema["properties"]
    yield from (f"{name} is missing" for name in schema.get("required", ()) if name not in arguments)
    yield from (f"{name} is unknown" for name in arguments if name not in properties)
    known_arguments = arguments.keys() & properties.keys()
    yield from (f"{name} has a wrong value" for name in sorted(known_arguments)
                if not is_value_valid(arguments[name], properties[name]))


def is_value_valid(value: object, schema: Mapping[str, Any]) -> bool:
    kinds = PYTHON_TYPES_BY_JSON_TYPE[schema["type"]]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        return False
    if isinstance(value, list):
        return all(is_value_valid(item, schema["items"]) for item in value)
    return "enum" not in schema or value in schema["enum"]


def make_valid_call_cases(seed: int, count: int = 20) -> list[EvaluationCase]:
    """Return requests that one call answers; any call that matches its schema passes."""
    return [make_valid_call_case(conversation)
            for conversation in islice(generate_evaluation_conversations(seed, (make_call_conversation,)), count)]


def make_wellformed_call_cases(seed: int, count: int = 20) -> list[EvaluationCase]:
    """Return the same requests; any well-formed call passes."""
    return [replace(case, accepts_answer=is_wellformed_tool_call) for case in make_valid_call_cases(seed, count)]


def make_exact_call_cases(seed: int, count: int = 20) -> list[EvaluationCase]:
    """Return the same requests; only the right call passes."""
    return [make_exact_call_case(case) for case in make_valid_call_cases(seed, count)]


def make_exact_call_case(case: EvaluationCase) -> EvaluationCase:
    return replace(case, accepts_answer=lambda text: parse_tool_call(text) == case.expected_answer)


def make_valid_call_case(conversation: Conversation) -> EvaluationCase:
    *prompt_messages, answer = conversation.messages
    function = answer["tool_calls"][0]["function"]
    expected_call = ToolCall(function["name"], function["arguments"])
    return EvaluationCase(prompt_messages, conversation.tools, expected_call,
                          lambda text: has_valid_tool_call(text, conversation.tools))


def is_wellformed_tool_call(text: str) -> bool:
    return isinstance(parse_tool_call(text), ToolCall)


def has_valid_tool_call(text: str, tools: Sequence[Tool]) -> bool:
    call = parse_tool_call(text)
    return isinstance(call, ToolCall) and is_valid_tool_call(call, tools)


def make_json_cases(seed: int, count: int = 20) -> list[EvaluationCase]:
    """Return requests for one JSON object with given fields."""
    return [make_json_case(conversation) for conversation in islice(
        generate_evaluation_conversations(seed, (make_object_conversation, make_nested_object_conversation,
                                                 make_extraction_conversation, make_schema_conversation)), count)]


def make_json_case(conversation: Conversation) -> EvaluationCase:
    *prompt_messages, answer = conversation.messages
    expected_object = json.loads(answer["content"])
    return EvaluationCase(prompt_messages, (), expected_object,
                          lambda text: is_json_object_with_fields(text, expected_object))


def generate_evaluation_conversations(seed: int, makers: Sequence[DocumentMaker]) -> Iterator[Conversation]:
    rng = Random(f"trial {seed}")  # noqa: S311 - requests to try the model with, not secrets
    while True:
        conversation = rng.choice(makers)(rng)
        if isinstance(conversation, Conversation) and not conversation.has_reasoning:
            yield conversation
