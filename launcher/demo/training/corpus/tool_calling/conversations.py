"""Conversations in which tools are offered: calls, replies after them, and requests for which no call is right.

A call uses an offered tool, the names in its schema and the values in the request.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from launcher.demo.training.conversation import Conversation, DocumentMaker, Message, Tool
from launcher.demo.training.corpus.arithmetic import make_arithmetic_document
from launcher.demo.training.corpus.counting import make_counting_document
from launcher.demo.training.corpus.json_answers import format_record_in_words
from launcher.demo.training.corpus.request_variations import (
    choose_weighted,
    fill_random_template,
    fill_slots,
    join_words,
    list_slots,
    lowercase_first_letter,
    make_optional_system_messages,
    prepend_reasoning,
    split_implied_values,
    vary_template,
)
from launcher.demo.training.corpus.spelling import make_spelling_document
from launcher.demo.training.corpus.tool_calling.action_tools import CHORE_TOOLS
from launcher.demo.training.corpus.tool_calling.invented_tools import invent_tool
from launcher.demo.training.corpus.tool_calling.lookup_tools import LOOKUP_TOOLS
from launcher.demo.training.corpus.tool_calling.tool_scenario import (
    ArgumentValues,
    ToolScenario,
    draw_values,
    parse_parameter_spec,
)

TOOL_SCENARIOS = (*LOOKUP_TOOLS, *CHORE_TOOLS)
MAX_TOOLS_LENGTH = 900  # maximum characters of all tools together, since the model's context is short
REASONING_SHARE = 0.2  # share of talks with reasoning
EXPLICIT_CALL_REQUESTS = (
    "Use {tool} with {pairs}", "Call {tool} with {pairs}", "Use the tool {tool} with {pairs}",
    "Run {tool} with {pairs}", "Call the tool {tool}: {pairs}", "Use {tool}: {pairs}",
    "I want you to use {tool} with {pairs}.", "Call {tool}: {pairs}")
TOOL_ERRORS = (
    "it was not found", "there is no answer", "it is too late", "nobody is there", "the line is busy",
    "try again later")
SMALL_TALK_ANSWERS = {
    "Hello": "Hello! How can I help you?", "Hi!": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?", "Thank you": "You are welcome.", "Thanks!": "You are welcome.",
    "How are you?": "I am fine, thank you.", "Goodbye": "Goodbye!", "Bye": "Goodbye!",
    "Who are you?": "I am the demo model of weft, a small language model.",
}
TASKS_SOLVED_WITHOUT_TOOL = ("add", "multiply")  # tasks that the model solves itself if there is no tool for them
NO_TOOL_ANSWER = "Sorry, I have no tool for that."
TWO_REQUESTS_TEMPLATES = (
    "{first} And then: {second}", "{first} Also: {second}", "{first}\n{second}", "1. {first}\n2. {second}",
    "{first} After that: {second}")


def choose_offered_tools(rng: Random, *scenarios: ToolScenario, excluded_names: Sequence[str] = ()) -> list[Tool]:
    """Return the tools of the scenarios and up to three others, in random order."""
    describes_parameters = rng.random() < 0.2
    tools = [scenario.make_tool(describes_parameters=describes_parameters) for scenario in scenarios]
    used_names = {*excluded_names, *(scenario.tool_name for scenario in scenarios)}
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        other = draw_tool_scenario(rng)
        tool = other.make_tool(describes_parameters=describes_parameters)
        if other.tool_name not in used_names and len(json.dumps([*tools, tool])) < MAX_TOOLS_LENGTH:
            tools.append(tool)
            used_names.add(other.tool_name)
    rng.shuffle(tools)
    return tools


def choose_other_tools(rng: Random, *excluded_names: str) -> list[Tool]:
    """Return at least one tool, and none of these names."""
    return choose_offered_tools(rng, excluded_names=excluded_names) or [
        rng.choice([scenario for scenario in TOOL_SCENARIOS if scenario.tool_name not in excluded_names]).make_tool()]


def draw_tool_scenario(rng: Random) -> ToolScenario:
    return invent_tool(rng) if rng.random() < 0.35 else rng.choice(TOOL_SCENARIOS)


def make_request_and_values(rng: Random, scenario: ToolScenario) -> tuple[str, ArgumentValues]:
    """Return a request and its values, mostly in plain words, sometimes with the names of tool and parameters."""
    if rng.random() > 0.08:
        return scenario.make_request(rng)
    values = draw_values(rng, scenario.parameter_spec,
                         [name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec)
                          if is_required])
    return fill_random_template(rng, EXPLICIT_CALL_REQUESTS, tool=scenario.tool_name,
                                pairs=format_record_in_words(rng, values)), values


def make_user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def make_assistant_message(text: str, reasoning: str = "") -> Message:
    return {"role": "assistant", "content": prepend_reasoning(reasoning, text) if reasoning else text}


def make_tool_call_message(*named_calls: tuple[str, ArgumentValues], reasoning: str = "") -> Message:
    made = [{"type": "function", "function": {"name": name, "arguments": values}} for name, values in named_calls]
    return {**make_assistant_message("", reasoning), "tool_calls": made}


def make_tool_message(content: Any) -> Message:
    return {"role": "tool", "content": json.dumps(content)}


def make_reasoning(scenario: ToolScenario, conclusion: str, *, has_reasoning: bool) -> str:
    return f"The user wants me to {lowercase_first_letter(scenario.description)}. {conclusion}" if has_reasoning else ""


def make_call_conversation(rng: Random) -> Conversation:
    has_reasoning = rng.random() < REASONING_SHARE
    turns, scenario, _ = make_first_call_turns(rng, has_reasoning=has_reasoning)
    return Conversation([*make_optional_system_messages(rng), *turns], choose_offered_tools(rng, scenario),
                        has_reasoning)


def make_answered_call_conversation(rng: Random) -> Conversation:
    has_reasoning = rng.random() < REASONING_SHARE
    turns, scenario, values = make_first_call_turns(rng, has_reasoning=has_reasoning)
    return Conversation([*make_optional_system_messages(rng), *turns,
                         *make_result_and_reply(rng, scenario, values, has_reasoning=has_reasoning)],
                        choose_offered_tools(rng, scenario), has_reasoning)


def make_first_call_turns(rng: Random, *, has_reasoning: bool) -> tuple[list[Message], ToolScenario, ArgumentValues]:
    scenario = draw_tool_scenario(rng)
    question, values = make_request_and_values(rng, scenario)
    work = make_reasoning(scenario, f"{scenario.tool_name} fits.", has_reasoning=has_reasoning)
    return [make_user_message(question),
            make_tool_call_message((scenario.tool_name, values), reasoning=work)], scenario, values


def make_result_and_reply(rng: Random, scenario: ToolScenario, values: ArgumentValues, *,
                          has_reasoning: bool) -> list[Message]:
    """Return the result of a tool and the reply to it."""
    work = f"{scenario.tool_name} has answered." if has_reasoning else ""
    if rng.random() < 0.08:
        error = rng.choice(TOOL_ERRORS)
        return [make_tool_message({"error": error}),
                make_assistant_message(f"Sorry, that did not work: {error}.", work)]
    result = scenario.make_result(rng, values)
    return [make_tool_message(result), make_assistant_message(scenario.make_reply(rng, values, result), work)]


def make_two_requests_conversation(rng: Random) -> Conversation:
    """Return a talk with two requests, one after the other."""
    first = draw_tool_scenario(rng)
    second = first if rng.random() < 0.6 else rng.choice(TOOL_SCENARIOS)
    has_reasoning = rng.random() < REASONING_SHARE
    turns: list[Message] = []
    for scenario in (first, second):
        question, values = scenario.make_request(rng)
        work = make_reasoning(scenario, f"{scenario.tool_name} fits.", has_reasoning=has_reasoning)
        turns += [make_user_message(question), make_tool_call_message((scenario.tool_name, values), reasoning=work)]
        turns += make_result_and_reply(rng, scenario, values, has_reasoning=has_reasoning)
    return Conversation([*make_optional_system_messages(rng), *turns[:-2]],
                        choose_offered_tools(rng, *dict.fromkeys((first, second))), has_reasoning)


def make_parallel_calls_conversation(rng: Random) -> Conversation:
    """Return a talk with two calls in one message."""
    scenarios = [rng.choice(TOOL_SCENARIOS)] * 2 if rng.random() < 0.4 else rng.sample(TOOL_SCENARIOS, 2)
    (first, first_values), (second, second_values) = (scenario.make_request(rng) for scenario in scenarios)
    requested = list(zip(scenarios, (first_values, second_values), strict=True))
    question = fill_slots(rng.choice(TWO_REQUESTS_TEMPLATES), {"first": add_full_stop(first), "second": second})
    turn = make_tool_call_message(*((scenario.tool_name, values) for scenario, values in requested))
    answer_turns = make_results_and_reply(rng, requested) if rng.random() < 0.5 else []
    return Conversation([*make_optional_system_messages(rng), make_user_message(question), turn, *answer_turns],
                        choose_offered_tools(rng, *dict.fromkeys(scenarios)))


def make_results_and_reply(rng: Random, requested: Sequence[tuple[ToolScenario, ArgumentValues]]) -> list[Message]:
    results = [(scenario, values, scenario.make_result(rng, values)) for scenario, values in requested]
    reply = " ".join(scenario.make_reply(rng, values, result) for scenario, values, result in results)
    return [*(make_tool_message(result) for *_, result in results), make_assistant_message(reply)]


def add_full_stop(text: str) -> str:
    return text if text[-1] in ".?!" else f"{text}."


def make_missing_value_conversation(rng: Random) -> Conversation:
    """Return a talk in which a required value is asked for, mostly followed by its answer and the call."""
    scenario = rng.choice([scenario for scenario in TOOL_SCENARIOS if scenario.vague_requests])
    request_template, implied_values = split_implied_values(rng.choice(scenario.vague_requests))
    values = draw_values(rng, scenario.parameter_spec, list_slots(request_template)) | implied_values
    missing_names = [name for name, _, is_required in parse_parameter_spec(scenario.parameter_spec) if is_required
                     and name not in values]
    has_reasoning = rng.random() < REASONING_SHARE
    work = make_reasoning(scenario,
                          f"{join_words(missing_names)} {'is' if len(missing_names) == 1 else 'are'} missing.",
                          has_reasoning=has_reasoning)
    turns = [make_user_message(fill_slots(vary_template(rng, request_template), values)),
             make_assistant_message(scenario.missing_value_question, work)]
    if len(missing_names) == 1 and not has_reasoning and rng.random() < 0.7:
        turns += make_supplied_value_turns(rng, scenario, values, missing_names[0])
    return Conversation([*make_optional_system_messages(rng), *turns], choose_offered_tools(rng, scenario),
                        has_reasoning)


def make_supplied_value_turns(rng: Random, scenario: ToolScenario, values: ArgumentValues, name: str) -> list[Message]:
    supplied_values = draw_values(rng, scenario.parameter_spec, [name])
    answer = fill_slots(rng.choice(("{value}", "{value}.", "{value}, please.", "{value} please")),
                        {"value": supplied_values[name]})
    return [make_user_message(answer),
            make_tool_call_message((scenario.tool_name, scenario.order_arguments(values | supplied_values)))]


def make_no_tool_fits_conversation(rng: Random) -> Conversation:
    """Return a talk in which no tool fits the request."""
    scenario = rng.choice([scenario for scenario in TOOL_SCENARIOS
                           if scenario.tool_name not in TASKS_SOLVED_WITHOUT_TOOL])
    has_reasoning = rng.random() < REASONING_SHARE
    question, _ = scenario.make_request(rng)
    tools = choose_other_tools(rng, scenario.tool_name)
    turn = make_assistant_message(NO_TOOL_ANSWER,
                                  make_reasoning(scenario, "No tool fits.", has_reasoning=has_reasoning))
    return Conversation([*make_optional_system_messages(rng), make_user_message(question), turn], tools, has_reasoning)


def make_no_tool_needed_conversation(rng: Random) -> Conversation:
    """Return a talk whose request needs no tool and is answered as if there were none."""
    tools = choose_other_tools(rng, *TASKS_SOLVED_WITHOUT_TOOL)
    if rng.random() < 0.3:
        question, reply = rng.choice(list(SMALL_TALK_ANSWERS.items()))
        return Conversation([*make_optional_system_messages(rng), make_user_message(question),
                             make_assistant_message(reply)], tools)
    return Conversation(make_conversation_without_tools(rng).messages, tools)


def make_conversation_without_tools(rng: Random) -> Conversation:
    while True:
        conversation = rng.choice((make_counting_document, make_arithmetic_document, make_spelling_document))(rng)
        if isinstance(conversation, Conversation) and not conversation.has_reasoning:
            return conversation


WEIGHTED_MAKERS: dict[DocumentMaker, int] = {make_call_conversation: 34, make_answered_call_conversation: 26,
                                             make_two_requests_conversation: 18, make_parallel_calls_conversation: 5,
                                             make_missing_value_conversation: 8, make_no_tool_fits_conversation: 6,
                                             make_no_tool_needed_conversation: 8}


def make_tool_document(rng: Random) -> Conversation | str:
    return choose_weighted(rng, WEIGHTED_MAKERS)(rng)
