"""The templates in `templates` use every feature that chat templates use, and render as in transformers.

The lists below name these features, and a test compares them with the templates. Intended differences are tested in
`tests/router/text/test_chat_template.py`: limits, tools that a template does not render, and unfinished answers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError, nodes
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import router.text.jinja_sandbox
from router.errors import ChatTemplateFailed
from router.http.openai.requests import ChatRequest, Message
from router.text.chat_template import ChatTemplate, Conversation
from router.text.jinja_sandbox import TemplateSandbox, collapse_whitespace
from router.text.tokenizer import create_byte_tokenizer

TEMPLATES = {path.stem: path.read_text(encoding="utf-8")
             for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
SPECIAL_TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


# ---------------------------------------------------------------------------------------------------------------------
# What templates use


def split_words(text: str) -> list[str]:
    return text.split()


FILTERS = split_words("""
    abs batch capitalize center count default dictsort e escape first float forceescape format groupby indent
    int items join last length list lower map max min reject rejectattr replace reverse round safe select
    selectattr slice sort string striptags sum title tojson trim truncate unique upper urlencode wordcount
    wordwrap
""")
JINJA_TESTS = split_words("""
    boolean callable defined divisibleby eq equalto even false filter float ge in integer iterable lower lt
    mapping ne none number odd sameas sequence string test true undefined upper
""")
METHODS = split_words("""
    capitalize count endswith find format fromkeys get index isdigit items join keys ljust lower lstrip
    partition removeprefix removesuffix replace rjust rsplit rstrip split splitlines startswith strip title
    upper values zfill
""")
LOOP_ATTRIBUTES = split_words(
    "changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0")
FUNCTIONS = split_words("caller cycler dict joiner loop namespace raise_exception range strftime_now")
VARIABLES = split_words("""
    add_generation_prompt bos_token citations cls_token date_string documents enable_thinking eos_token
    keep_thoughts messages pad_token sep_token tools tools_in_user_message unk_token
""")
NODES = split_words("""
    Add And AssignBlock Block CallBlock Compare Concat CondExpr Const Dict Div Filter FilterBlock FloorDiv For
    Getattr Getitem If Keyword List Macro Mod Mul NSRef Name Neg Not Operand Or Pair Pow Scope Slice Sub Test
    Tuple With
""")
OPERATORS = split_words("eq ne gt gteq lt lteq in notin")
SYNTAX_FORMS: Mapping[str, Callable[[Any], object]] = {
    "a loop with a condition": lambda node: isinstance(node, nodes.For) and node.test,
    "a loop with an else": lambda node: isinstance(node, nodes.For) and node.else_,
    "a loop that calls itself": lambda node: isinstance(node, nodes.For) and node.recursive,
    "a loop over pairs": lambda node: isinstance(node, nodes.For) and isinstance(node.target, nodes.Tuple),
    "an elif": lambda node: isinstance(node, nodes.If) and node.elif_,
    "an if within an expression": lambda node: isinstance(node, nodes.CondExpr) and node.expr2,
    "such an if without an else": lambda node: isinstance(node, nodes.CondExpr) and node.expr2 is None,
    "a macro with a default": lambda node: isinstance(node, nodes.Macro) and node.defaults,
    "a call by names": lambda node: isinstance(node, nodes.Call) and node.kwargs,
    "a call with a dictionary of names": lambda node: isinstance(node, nodes.Call) and node.dyn_kwargs,
    "a call block with a parameter": lambda node: isinstance(node, nodes.CallBlock) and node.args,
    "a block assigned through a filter": lambda node: isinstance(node, nodes.AssignBlock) and node.filter,
    "two variables set at once": lambda node: isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Tuple),
    "a comparison in a chain": lambda node: isinstance(node, nodes.Compare) and len(node.ops) > 1,
    "a step in a slice": lambda node: isinstance(node, nodes.Slice) and node.step,
    "an index from the end": lambda node: isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Neg),
    "a fraction": lambda node: isinstance(node, nodes.Const) and isinstance(node.value, float),
}
SYNTAX_MARKS = {
    "blanks taken before": r"\{%-", "blanks taken behind": r"-%\}", "likewise of values": r"\{\{-.*-\}\}",
    "blanks kept before": r"\{%\+", "the end of the line kept": r"\+%\}", "a comment": r"\{# ",
    "a comment that takes blanks": r"\{#-.*-#\}", "raw": r"\{% raw %\}", "generation": r"\{%-? generation %\}",
    "break": r"\{% break %\}", "continue": r"\{% continue %\}", "what might be a statement's line": r"(?m)^# for ",
    "what might be a comment's line": r"(?m)^## ", "an escaped character": r"\\u[0-9a-f]{4}", "a tab": r"(?m)^\t",
}


@cache
def parsed_templates() -> tuple[nodes.Template, ...]:
    return tuple(map(TemplateSandbox().parse, TEMPLATES.values()))


def find_nodes(node_type: type[nodes.Node] | tuple[type[nodes.Node], ...] = nodes.Node) -> Iterator[Any]:
    return (node for tree in parsed_templates() for node in tree.find_all(node_type))


def get_called_functions() -> set[str]:
    macros = {macro.name for macro in find_nodes(nodes.Macro)}
    return {call.node.name for call in find_nodes(nodes.Call) if isinstance(call.node, nodes.Name)} - macros - {"comma"}


def get_called_methods() -> set[str]:
    """Return the methods called on values, so without those of the loop, of blocks and of cyclers."""
    called = [call.node for call in find_nodes(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    return {call.attr for call in called
            if not (isinstance(call.node, nodes.Name) and call.node.name in {"loop", "self", "shed"})}


def get_loop_attributes() -> set[str]:
    return {node.attr for node in find_nodes(nodes.Getattr)
            if isinstance(node.node, nodes.Name) and node.node.name == "loop"}


def test_there_are_at_least_thirty_templates() -> None:
    assert len(set(TEMPLATES.values())) >= 30


def test_feature_lists_match_what_the_templates_use() -> None:
    assert sorted({node.name for node in find_nodes(nodes.Filter)}) == FILTERS
    assert sorted({node.name for node in find_nodes(nodes.Test)}) == JINJA_TESTS
    assert sorted(get_called_methods()) == METHODS
    assert sorted(get_loop_attributes()) == LOOP_ATTRIBUTES
    assert sorted(get_called_functions()) == FUNCTIONS


def test_every_kind_of_statement_and_expression_is_used() -> None:
    kinds = {type(node).__name__ for node in find_nodes()}
    assert set(NODES) - kinds == set()
    assert {node.op for node in find_nodes(nodes.Operand)} == set(OPERATORS)
    assert set(VARIABLES) - {node.name for node in find_nodes(nodes.Name)} == set()


def test_every_syntax_form_is_used() -> None:
    everything = list(find_nodes())
    assert [shape for shape, fits in SYNTAX_FORMS.items() if not any(map(fits, everything))] == []


def test_every_syntax_mark_is_used() -> None:
    sources = "\n".join(TEMPLATES.values())
    assert [mark for mark, pattern in SYNTAX_MARKS.items() if not re.search(pattern, sources)] == []


# ---------------------------------------------------------------------------------------------------------------------
# Comparison with transformers


def user(content: object, **fields: object) -> dict[str, object]:
    return {"role": "user", "content": content, **fields}


def assistant(content: object, **fields: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **fields}


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


def tool_call(name: str, **arguments: object) -> dict[str, object]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(name: str, content: str) -> dict[str, object]:
    return {"role": "tool", "name": name, "tool_call_id": f"call_{name}", "content": content}


TOOLS = (
    {"type": "function", "function": {
        "name": "dye", "description": "Dyes <b>wool</b> & linen,\nat 60 °C: \"färbt\" 染める", "parameters": {
            "type": "object", "required": ["colour"], "properties": {
                "colour": {"type": "string", "enum": ["red", "grün", "<blue>"], "description": "Which 'colour'?"},
                "minutes": {"type": ["integer", "null"], "default": 5},
                "parts": {"type": "array", "items": {"type": "number"}},
                "bath": {"type": "object", "properties": {"salt": {"type": "boolean"}}}}}}},
    {"type": "function", "function": {"name": "rest"}},
)
CONVERSATIONS: Mapping[str, tuple[Mapping[str, object], ...]] = {
    "question": (user("Which threads cross?"),),
    "orders": (system("You weave.\n"), user("Go on!")),
    "no orders": (system(""), user("")),
    "turns": (system("  Weave "), user(" <b>Über & unter</b>, \"織物\"?\n\n"), assistant("Ja 🧵.<|end|> "),
              user("<|begin|>'again' {{ bos_token }}\n\ttwo lines", name="warp")),
    "out of turn": (user("one"), user("two"), assistant("three"), system("four"), user("five")),
    "begins with an answer": (assistant("<red>"), user("<answer>blue</answer>")),
    "call": (user("Dye it."),
             assistant(None, tool_calls=[tool_call("dye", colour="grün", parts=[1, 2.5], bath={"salt": True})]),
             tool_result("dye", "{\"done\": \"<ja>\"}"), user("And?")),
    "calls": (system("Call."), user("Dye & rest."),
              assistant("Both:", tool_calls=[tool_call("dye", colour="red", minutes=None), tool_call("rest")]),
              tool_result("dye", "é"), tool_result("rest", ""), assistant("Done."), user("Thanks.")),
    "thoughts": (user("Why?"), assistant("So.", reasoning_content="Since\nit is."), user("How?"),
                 assistant("<think>\nSlowly.\n</think>\n\nThus."), user("When?"),
                 assistant("Now.", reasoning="It is time."), user("Ah.")),
    "thoughts and calls": (
        system("Weave."), user("Dye it, then rest."),
        assistant(None, reasoning_content="Red,\nI <think>.", tool_calls=[tool_call("dye", colour="red")]),
        tool_result("dye", "done"), assistant("And now:", reasoning="Rest.", tool_calls=[tool_call("rest")]),
        tool_result("rest", "zzz"), assistant("Both are done.", thinking="Enough."), user("Thanks & again?")),
    "result": (user("Dye it."), assistant("", reasoning_content=" ", tool_calls=[tool_call("dye", colour="red")]),
               tool_result("dye", "{\"ok\": true}")),
    "parts": (user([{"type": "text", "text": " Is this "}, {"type": "image"}, {"type": "text", "text": "twill?"}]),),
    "parts that nobody knows": (user([{"type": "smell", "smell": "wool"}]), assistant("?"), user("x")),
    "nothing": (user(None), assistant(None), user("x")),
    "rows": tuple(user(f"row {n}") if n % 2 else assistant(f"row {n}") for n in range(1, 10)),
}
# What clients send as `chat_template_kwargs`.
TEMPLATE_VARIABLES: Sequence[Mapping[str, Any]] = (
    {}, {"enable_thinking": True}, {"enable_thinking": False},
    {"keep_thoughts": True, "date_string": "1 Feb", "tools_in_user_message": False, "unknown": [None]})
ANSWER_BEGINNINGS = {"One, two,": "plain", " One,\ntwo \n": "with blanks around it", "a": "that stands in the cue, too",
                     "<think>\nSo": "within thoughts", "\"é\" & <b>": "that JSON and HTML write otherwise"}


class NoonDatetime(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> "NoonDatetime":
        return cls(2026, 2, 1, 12)


@pytest.fixture
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (router.text.jinja_sandbox, chat_template_utils):
        monkeypatch.setattr(module, "datetime", NoonDatetime)


@cache
def reference_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=create_byte_tokenizer()._tokenizer, **SPECIAL_TOKENS)


@cache
def make_template(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL_TOKENS)


Tools = Sequence[Mapping[str, Any]]


def get_tools(source: str) -> Tools:
    return TOOLS if "tools" in source else ()


def render_with_router(source: str, messages: Any, tools: Tools | None = None, **variables: Any) -> str:
    """Return the prompt, with the tools that the template renders by default, or "refused: " and the reason."""
    return render_conversation(source, Conversation(tuple(messages), get_tools(source) if tools is None else tools,
                                                    template_variables=variables))


def render_conversation(source: str, conversation: Conversation) -> str:
    try:
        return make_template(source).render(conversation)
    except ChatTemplateFailed as refusal:
        return f"refused: {refusal}"


def render_with_transformers(source: str, messages: Any, tools: Tools | None = None, **options: Any) -> str:
    try:
        return str(reference_tokenizer().apply_chat_template(
            list(messages), list(get_tools(source) if tools is None else tools) or None, chat_template=source,
            tokenize=False, **options))
    except Exception as error:
        name = "" if type(error) is TemplateError else f"{type(error).__name__}: "
        return f"refused: {collapse_whitespace(name + str(error))}"


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_prompt_matches_transformers(name: str) -> None:
    source = TEMPLATES[name]
    prompts = {of: render_with_router(source, messages) for of, messages in CONVERSATIONS.items()}
    assert prompts == {of: render_with_transformers(source, messages, add_generation_prompt=True)
                       for of, messages in CONVERSATIONS.items()}
    assert sum(not prompt.startswith("refused") for prompt in prompts.values()) >= 3


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_prompt_with_variables_and_without_tools_matches_transformers(name: str) -> None:
    source = TEMPLATES[name]
    cases = [(messages, tools, variables) for messages in CONVERSATIONS.values() for tools in ((), get_tools(source))
             for variables in TEMPLATE_VARIABLES]
    prompts = [render_with_router(source, messages, tools, **variables) for messages, tools, variables in cases]
    assert prompts == [render_with_transformers(source, messages, tools, add_generation_prompt=True, **variables)
                       for messages, tools, variables in cases]


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_of_a_request_matches_transformers(name: str) -> None:
    """Messages, tools and variables as clients send them: with null for an empty content, which templates get as a
    string, and with arguments as the text that they received."""
    source = TEMPLATES[name]
    for messages in filter(None, map(to_request_messages, CONVERSATIONS.values())):
        for variables in TEMPLATE_VARIABLES:
            sent = [{**message, "content": message["content"] or None} if "tool_calls" in message else message
                    for message in map(with_arguments_as_text, messages)]
            body = {"messages": sent, "tools": [*get_tools(source)] or None, "chat_template_kwargs": variables}
            prompt = render_conversation(source, ChatRequest.model_validate_json(json.dumps(body)).conversation)
            assert prompt == render_with_transformers(source, messages, add_generation_prompt=True, **variables)


def to_request_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages whose content is text, with the fields of requests in their order."""
    return [{field: message[field] or "" for field in Message.model_fields if field in message} for message in messages
            if isinstance(message["content"], str) or "tool_calls" in message]


def with_arguments_as_text(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
             for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls} if calls else message


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("begun", ANSWER_BEGINNINGS, ids=ANSWER_BEGINNINGS.values())
def test_continued_answer_matches_transformers_except_for_blanks(begun: str) -> None:
    messages = (user("Count."), assistant(begun))
    expected = {name: render_with_transformers(source, messages, continue_final_message=True)
                for name, source in TEMPLATES.items()}
    # If a template repeats the last message, transformers leaves its own marker in the prompt.
    fit = {name: prompt.rstrip() for name, prompt in expected.items()
           if not re.search("(?i)^refused|_message_tag", prompt)}
    assert {name: render_with_router(TEMPLATES[name], messages) for name in fit} == fit
    assert len(fit) >= 20
