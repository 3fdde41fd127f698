"""The templates in `templates` use every feature that chat templates use, and render as in transformers.

The lists below name these features, and a test compares them with the templates. Intended differences are tested in
`tests/router/text/test_chat_template.py`: limits, tools that a template does not render, and unfinished answers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError, nodes
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

import router.text.jinja_sandbox
from router.errors import TemplateFailed
from router.text.chat_template import ChatTemplate, Conversation
from router.text.jinja_sandbox import Sandbox, told
from router.text.tokenizer import byte_tokenizer

TEMPLATES = {path.stem: path.read_text(encoding="utf-8")
             for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


# ---------------------------------------------------------------------------------------------------------------------
# What templates use


def words(text: str) -> list[str]:
    return text.split()


FILTERS = words("""
    abs batch capitalize center count default dictsort e escape first float forceescape format groupby indent
    int items join last length list lower map max min reject rejectattr replace reverse round safe select
    selectattr slice sort string striptags sum title tojson trim truncate unique upper urlencode wordcount
    wordwrap
""")
TESTS = words("""
    boolean callable defined divisibleby eq equalto even false filter float ge in integer iterable lower lt
    mapping ne none number odd sameas sequence string test true undefined upper
""")
METHODS = words("""
    capitalize count endswith find format fromkeys get index isdigit items join keys ljust lower lstrip
    partition removeprefix removesuffix replace rjust rsplit rstrip split splitlines startswith strip title
    upper values zfill
""")
LOOP = words("changed cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0")
FUNCTIONS = words("caller cycler dict joiner loop namespace raise_exception range strftime_now")
VARIABLES = words("""
    add_generation_prompt bos_token citations cls_token date_string documents enable_thinking eos_token
    keep_thoughts messages pad_token sep_token tools tools_in_user_message unk_token
""")
NODES = words("""
    Add And AssignBlock Block CallBlock Compare Concat CondExpr Const Dict Div Filter FilterBlock FloorDiv For
    Getattr Getitem If Keyword List Macro Mod Mul NSRef Name Neg Not Operand Or Pair Pow Scope Slice Sub Test
    Tuple With
""")
OPERATORS = words("eq ne gt gteq lt lteq in notin")
SHAPES: Mapping[str, Callable[[Any], object]] = {
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
MARKS = {
    "blanks taken before": r"\{%-", "blanks taken behind": r"-%\}", "likewise of values": r"\{\{-.*-\}\}",
    "blanks kept before": r"\{%\+", "the end of the line kept": r"\+%\}", "a comment": r"\{# ",
    "a comment that takes blanks": r"\{#-.*-#\}", "raw": r"\{% raw %\}", "generation": r"\{%-? generation %\}",
    "break": r"\{% break %\}", "continue": r"\{% continue %\}", "what might be a statement's line": r"(?m)^# for ",
    "what might be a comment's line": r"(?m)^## ", "an escaped character": r"\\u[0-9a-f]{4}", "a tab": r"(?m)^\t",
}


@cache
def trees() -> tuple[nodes.Template, ...]:
    return tuple(map(Sandbox().parse, TEMPLATES.values()))


def found(kind: type[nodes.Node] | tuple[type[nodes.Node], ...] = nodes.Node) -> Iterator[Any]:
    return (node for tree in trees() for node in tree.find_all(kind))


def names_called() -> set[str]:
    macros = {macro.name for macro in found(nodes.Macro)}
    return {call.node.name for call in found(nodes.Call) if isinstance(call.node, nodes.Name)} - macros - {"comma"}


def methods_called() -> set[str]:
    """Return the methods called on values, so without those of the loop, of blocks and of cyclers."""
    called = [call.node for call in found(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    return {call.attr for call in called
            if not (isinstance(call.node, nodes.Name) and call.node.name in {"loop", "self", "shed"})}


def asked_of_loops() -> set[str]:
    return {node.attr for node in found(nodes.Getattr)
            if isinstance(node.node, nodes.Name) and node.node.name == "loop"}


def test_there_are_at_least_thirty() -> None:
    assert len(set(TEMPLATES.values())) >= 30


def test_the_lists_name_what_the_templates_use_and_nothing_else() -> None:
    assert sorted({node.name for node in found(nodes.Filter)}) == FILTERS
    assert sorted({node.name for node in found(nodes.Test)}) == TESTS
    assert sorted(methods_called()) == METHODS
    assert sorted(asked_of_loops()) == LOOP
    assert sorted(names_called()) == FUNCTIONS


def test_every_kind_of_statement_and_expression_is_used() -> None:
    kinds = {type(node).__name__ for node in found()}
    assert set(NODES) - kinds == set()
    assert {node.op for node in found(nodes.Operand)} == set(OPERATORS)
    assert set(VARIABLES) - {node.name for node in found(nodes.Name)} == set()


def test_every_shape_of_them_is_used() -> None:
    everything = list(found())
    assert [shape for shape, fits in SHAPES.items() if not any(map(fits, everything))] == []


def test_every_mark_is_used() -> None:
    sources = "\n".join(TEMPLATES.values())
    assert [mark for mark, pattern in MARKS.items() if not re.search(pattern, sources)] == []


# ---------------------------------------------------------------------------------------------------------------------
# Comparison with transformers


def user(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content, **more}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(name: str, content: str) -> dict[str, object]:
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
             assistant(None, tool_calls=[call("dye", colour="grün", parts=[1, 2.5], bath={"salt": True})]),
             answer("dye", "{\"done\": \"<ja>\"}"), user("And?")),
    "calls": (system("Call."), user("Dye & rest."),
              assistant("Both:", tool_calls=[call("dye", colour="red", minutes=None), call("rest")]),
              answer("dye", "é"), answer("rest", ""), assistant("Done."), user("Thanks.")),
    "thoughts": (user("Why?"), assistant("So.", reasoning_content="Since\nit is."), user("How?"),
                 assistant("<think>\nSlowly.\n</think>\n\nThus."), user("When?"),
                 assistant("Now.", reasoning="It is time."), user("Ah.")),
    "parts": (user([{"type": "text", "text": " Is this "}, {"type": "image"}, {"type": "text", "text": "twill?"}]),),
    "parts that nobody knows": (user([{"type": "smell", "smell": "wool"}]), assistant("?"), user("x")),
    "nothing": (user(None), assistant(None), user("x")),
    "rows": tuple(user(f"row {n}") if n % 2 else assistant(f"row {n}") for n in range(1, 10)),
}
BEGUN = {"One, two,": "plain", " One,\ntwo \n": "with blanks around it", "a": "that stands in the cue, too",
         "<think>\nSo": "within thoughts", "\"é\" & <b>": "that JSON and HTML write otherwise"}


class Noon(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> "Noon":
        return cls(2026, 2, 1, 12)


@pytest.fixture
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (router.text.jinja_sandbox, chat_template_utils):
        monkeypatch.setattr(module, "datetime", Noon)


@cache
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer()._tokenizer, **SPECIAL)


@cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL)


def tools_for(source: str) -> tuple[Mapping[str, Any], ...]:
    return TOOLS if "tools" in source else ()


def ours(source: str, messages: Any) -> str:
    """Return the prompt, or "refused: " and the reason."""
    try:
        return template(source).render(Conversation(tuple(messages), tools_for(source)))
    except TemplateFailed as refusal:
        return f"refused: {refusal}"


def theirs(source: str, messages: Any, **how: Any) -> str:
    try:
        return str(oracle().apply_chat_template(
            list(messages), list(tools_for(source)) or None, chat_template=source, tokenize=False, **how))
    except Exception as error:
        name = "" if type(error) is TemplateError else f"{type(error).__name__}: "
        return f"refused: {told(name + str(error))}"


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_prompt_is_that_of_transformers(name: str) -> None:
    source = TEMPLATES[name]
    prompts = {of: ours(source, messages) for of, messages in CONVERSATIONS.items()}
    assert prompts == {of: theirs(source, messages, add_generation_prompt=True)
                       for of, messages in CONVERSATIONS.items()}
    assert sum(not prompt.startswith("refused") for prompt in prompts.values()) >= 3


@pytest.mark.usefixtures("_noon")
@pytest.mark.parametrize("begun", BEGUN, ids=BEGUN.values())
def test_an_answer_goes_on_where_it_does_in_transformers_but_for_blanks(begun: str) -> None:
    messages = (user("Count."), assistant(begun))
    its = {name: theirs(source, messages, continue_final_message=True) for name, source in TEMPLATES.items()}
    # If a template repeats the last message, transformers leaves its own marker in the prompt.
    fit = {name: prompt.rstrip() for name, prompt in its.items() if not re.search("(?i)^refused|_message_tag", prompt)}
    assert {name: ours(TEMPLATES[name], messages) for name in fit} == fit
    assert len(fit) >= 20
