"""Grammars of whole answers: what fits is parsed as reasoning with calls, or with an answer in the format."""

import json
from functools import partial

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from router.errors import InvalidTools
from router.grammars.compiler_process import compile_grammar
from router.grammars.parameters import Grammar
from router.http.openai.request_tools import Tool, required_call_grammar
from router.http.openai.whole_answer_grammar import allow_reasoning_before_grammar, allow_tool_calls
from router.text.chat_template import ChatTemplate, Conversation
from router.text.constrained_answer_parsers import CallsOrTextParser, RequiredCallParser
from router.text.output_formats import (
    BARE_JSON_FORMAT,
    DEEPSEEK_FORMAT,
    DEEPSEEK_LATER_FORMAT,
    GEMMA_FORMAT,
    GRANITE_FORMAT,
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_FORMAT,
    MISTRAL_FORMAT,
    MISTRAL_NAMED_FORMAT,
    QWEN_CODER_FORMAT,
    REASONING_FIELDS,
    ReasoningState,
    find_reasoning_state,
    get_output_syntax,
    without_fields,
    without_tool_calls,
)
from router.text.response_parser import (
    ContentPiece,
    OutputFormatParser,
    ParsedToolCall,
    ReasoningPiece,
    parse_complete_response,
)
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import GenerationInput

TOOLS = [Tool.model_validate({"type": "function", "function": {"name": name, "parameters": parameters}})
         for name, parameters in (("paint", {"type": "object", "required": ["colour"], "properties": {
             "colour": {"$ref": "#/$defs/colour"}}, "$defs": {"colour": {"enum": ["red", "a \"b\""]}}}),
             ("stop", None))]
TEMPLATE_TOOLS = [tool.model_dump(exclude_unset=True) for tool in TOOLS]
FORMAT = Grammar("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}},
                                            "required": ["a"], "additionalProperties": False}))
ANSWER = '{"a": 1}'
PAINT, STOP = ParsedToolCall("paint", '{"colour": "red"}'), ParsedToolCall("stop", "{}")
CODER_PAINT = "<tool_call>\n<function=paint>\n<parameter=colour>\nred\n</parameter>\n</function>\n</tool_call>"
BEGIN, SEPARATOR, END, CALLS_BEGIN, CALLS_END = (f"<\uff5ctool\u2581{name}\uff5c>" for name in (
    "call\u2581begin", "sep", "call\u2581end", "calls\u2581begin", "calls\u2581end"))
# By the format: marks that are special tokens, the text of a call of each function, of both, and what opens an answer.
CASES = {
    "hermes": (HERMES_FORMAT, ["<tool_call>", "</tool_call>"],
               '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>',
               '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>', "\n", ""),
    "llama": (LLAMA_FORMAT, [], '{"name": "paint", "parameters": {"colour": "red"}}', "", "", ""),
    "bare": (BARE_JSON_FORMAT, [], '{"name": "paint", "arguments": {"colour": "red"}}', "", "", ""),
    "mistral": (MISTRAL_FORMAT, ["[TOOL_CALLS]"],
                '[TOOL_CALLS] [{"name": "paint", "arguments": {"colour": "red"}}', '{"name": "stop", "arguments": {}}]',
                ", ", ""),
    "later mistral": (MISTRAL_NAMED_FORMAT, ["[TOOL_CALLS]", "[ARGS]"], '[TOOL_CALLS]paint[ARGS]{"colour": "red"}',
                      "[TOOL_CALLS]stop[ARGS]{}", "", ""),
    "deepseek": (DEEPSEEK_FORMAT, [BEGIN, SEPARATOR, END, CALLS_BEGIN, CALLS_END],
                 f'{CALLS_BEGIN}{BEGIN}function{SEPARATOR}paint\n```json\n{{"colour": "red"}}\n```{END}',
                 f"{BEGIN}function{SEPARATOR}stop\n```json\n{{}}\n```{END}{CALLS_END}", "\n", ""),
    "later deepseek": (DEEPSEEK_LATER_FORMAT, [BEGIN, SEPARATOR, END, CALLS_BEGIN, CALLS_END],
                       f'{CALLS_BEGIN}{BEGIN}paint{SEPARATOR}{{"colour": "red"}}{END}',
                       f"{BEGIN}stop{SEPARATOR}{{}}{END}{CALLS_END}", "", ""),
    "a format of the model's own": (
        {"start_anchor": "A:", "fields": {
            "tool_calls": {"open_pattern": r"\s*<call>", "close": "</call>", "repeats": True, "content": "json",
                           "transform": {"type": "function", "function": "{content}"}},
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
            "content": {"close_pattern": r"\s*<end>"}}},
        ["<call>", "</call>"], '<call>\n{"name": "paint", "arguments": {"colour": "red"}}</call>',
        '<call>{"name": "stop", "arguments": {}}\n</call>', "\n", ""),
    "qwen coder": (QWEN_CODER_FORMAT, ["<tool_call>", "</tool_call>"], CODER_PAINT,
                   "<tool_call>\n<function=stop>\n</function>\n</tool_call>", "\n", ""),
    "granite": (GRANITE_FORMAT, ["<|tool_call|>"],
                '<|tool_call|>[{"name": "paint", "arguments": {"colour": "red"}}', '{"name": "stop", "arguments": {}}]',
                ", ", ""),
    "harmony": (HARMONY_FORMAT, ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"],
                '<|channel|>commentary to=functions.paint <|constrain|>json<|message|>{"colour": "red"}', "", "",
                "<|channel|>final<|message|>"),
}


def make_tokenizer(marks):
    """Return the tokenizer of bytes with these special tokens, and one more that ends texts."""
    tokenizer = Tokenizer.from_str(create_byte_tokenizer().path_or_content)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in ["<end>", *marks]])
    return LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<end>"))


def make_template(output_format, *, reasons):
    template = ChatTemplate("", {}, output_format)
    template.reasoning_format = without_tool_calls(output_format) if reasons else None
    return template


def constrain(template, prompt_end, *, has_format=True, has_calls=True, has_one_call=False):
    """Return the grammar of an answer behind this end of the prompt."""
    grammar = FORMAT if has_format else required_call_grammar(TOOLS, "required")
    given = GenerationInput(prompt=Conversation(({"role": "user", "content": "hi"},), may_reason=True), grammar=grammar)
    given = allow_reasoning_before_grammar(given, template, is_required_call=not has_format)
    if has_format and has_calls:
        given = allow_tool_calls(given, template, TOOLS, has_one_call=has_one_call)
    if isinstance(given.grammar, Grammar):
        return given.grammar
    return given.grammar.to_output_grammar(template.find_begun_answer(given.prompt, prompt_end).reasoning_state)


def make_either_parser(template, prompt_end=None):
    output_format, prompt = template.output_format, template.output_format["start_anchor"]
    beginning = template.find_begun_answer(Conversation((), may_reason=True), prompt + (prompt_end or ""))
    return CallsOrTextParser(
        get_output_syntax(output_format), beginning.reasoning_state, {"paint", "stop"}, partial(
            OutputFormatParser, without_fields(output_format, *REASONING_FIELDS), "", TEMPLATE_TOOLS))


def fits(tokenizer, grammar, text):
    matcher = LLMatcher(tokenizer, compile_grammar(tokenizer, grammar.kind, grammar.source), log_level=0)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("has_special_tokens", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_answer_is_in_the_format_or_calls(name, has_special_tokens):
    output_format, marks, first, second, separator, opening = CASES[name]
    thoughts = get_output_syntax(output_format).thoughts
    tokenizer = make_tokenizer([*marks, *(() if name == "harmony" else thoughts or ())] if has_special_tokens else [])
    template = make_template(output_format, reasons=thoughts is not None)
    grammar = constrain(template, output_format["start_anchor"])
    end = first if not second else "]" if first.count("[{") else CALLS_END if "deepseek" in name else ""
    one = first if not second else first + end
    cases = [(opening + ANSWER, [ContentPiece(ANSWER)]), (one, [PAINT])]
    if second:
        cases.append((first + separator + second, [PAINT, STOP]))
    if thoughts is not None and name != "harmony":
        cases += [(f"{thoughts[0]}\nHm {{x}}\n{thoughts[1]}\n\n{text}", [ReasoningPiece("\nHm {x}\n"), *parts])
                  for text, parts in cases]
    elif thoughts is not None:
        cases += [(f"{thoughts[0]}Hm{thoughts[1]}<|start|>assistant{text}", [ReasoningPiece("Hm"), *parts])
                  for text, parts in cases]
    for text, parts in cases:
        assert fits(tokenizer, grammar, text), text
        parser = OutputFormatParser(output_format, output_format["start_anchor"], TEMPLATE_TOOLS)
        assert parse_complete_response(parser, [text]) == parts
        for pieces in ([text], [*text]):
            assert parse_complete_response(make_either_parser(template), pieces) == parts
    for text in ("hi", opening + '{"b": 1}', one.replace("paint", "draw"), f"{one}{opening}{ANSWER}", ""):
        assert not fits(tokenizer, grammar, text), text
    if "{parameters}" not in get_output_syntax(output_format).call:
        assert not fits(tokenizer, grammar, one.replace("red", "blue"))
    if second:
        assert not fits(tokenizer, constrain(template, "", has_one_call=True), first + separator + second)


@pytest.mark.parametrize(("prompt_end", "fitting", "others"), [
    ("", [ANSWER, f"<think>x</think>\n\n{ANSWER}"], [f"x</think>{ANSWER}", "<think>x</think>"]),
    ("<think>\n", [f"x\n</think>{ANSWER}"], [ANSWER, f"<think>x</think>{ANSWER}x"]),
    ("<think>\n\n</think>\n\n", [ANSWER], [f"<think>x</think>{ANSWER}", f"x</think>{ANSWER}"])])
@pytest.mark.parametrize("marks", [["<think>", "</think>"], []])
def test_grammar_begins_behind_the_reasoning(prompt_end, fitting, others, marks):
    tokenizer, template = make_tokenizer(marks), make_template(HERMES_FORMAT, reasons=True)
    grammar = constrain(template, f"<|im_start|>assistant\n{prompt_end}", has_calls=False)
    assert [text for text in fitting + others if fits(tokenizer, grammar, text)] == fitting


@pytest.mark.parametrize(("prompt_end", "text"), [
    ("", '<think>x</think>\n<tool_call>\n{"name": "stop", "arguments": {}}'),
    ("", '<tool_call>\n{"name": "stop", "arguments": {}}'),
    ("<think>\n", 'x</think>\n\n<tool_call>\n{"name": "stop", "arguments": {}}'),
    ("<think>\n\n</think>\n\n<tool_call>\n", '{"name": "stop", "arguments": {}}')])
def test_required_call_follows_the_reasoning(prompt_end, text):
    template, prompt = make_template(HERMES_FORMAT, reasons=True), f"<|im_start|>assistant\n{prompt_end}"
    template.tool_call_opening = "<tool_call>\n"
    grammar = constrain(template, prompt, has_format=False)
    assert fits(make_tokenizer(["<think>", "</think>", "<tool_call>"]), grammar, text)
    for size in (1, 3, 1000):
        parser = RequiredCallParser(get_output_syntax(HERMES_FORMAT), find_reasoning_state(HERMES_FORMAT, prompt),
                                    "<tool_call>\n")
        parts = parse_complete_response(parser, [text[place:place + size] for place in range(0, len(text), size)])
        assert parts == [*[ReasoningPiece("x")] * ("x" in text), STOP]


def test_required_call_of_harmony_stands_in_the_final_channel():
    template, call = make_template(HARMONY_FORMAT, reasons=True), '{"name": "stop", "arguments": {}}'
    grammar = constrain(template, "<|start|>assistant", has_format=False)
    text = (f"<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>{call}")
    assert fits(make_tokenizer(CASES["harmony"][1]), grammar, text)
    parser = RequiredCallParser(get_output_syntax(HARMONY_FORMAT), ReasoningState.POSSIBLE)
    assert parse_complete_response(parser, [*text]) == [ReasoningPiece("x"), STOP]


def test_answer_that_a_prompt_of_harmony_has_begun_stands_in_its_channel():
    """Its opening is part of the prompt, so that it does not come again."""
    template, tokenizer = make_template(HARMONY_FORMAT, reasons=True), make_tokenizer(CASES["harmony"][1])
    prompt_end = "<|channel|>final<|message|>Well: "
    grammar = constrain(template, f"<|start|>assistant{prompt_end}")
    assert [fits(tokenizer, grammar, opening + ANSWER) for opening in ("", CASES["harmony"][5])] == [True, False]
    assert parse_complete_response(make_either_parser(template, prompt_end), [ANSWER]) == [ContentPiece(ANSWER)]


def test_model_without_reasoning_keeps_its_grammar():
    assert constrain(make_template(HERMES_FORMAT, reasons=False), "", has_calls=False) == FORMAT


@pytest.mark.parametrize("output_format", [GEMMA_FORMAT, {"start_anchor": "a", "fields": {"content": {}}}])
def test_calls_without_a_grammar_exclude_a_format(output_format):
    with pytest.raises(InvalidTools, match=r"`grammar` and `tools` are given, but no grammar can be made of calls"):
        constrain(make_template(output_format, reasons=False), "")


TOOL = {"name": "paint", "parameters": {"type": "object", "properties": {}}}
FUNCTION_TOOL, SCHEMA = {"type": "function", "function": TOOL}, {"type": "object"}
REQUESTS = {  # by the route: a chat with tools and a format, and the name of the format
    "/v1/chat/completions": ({"tools": [FUNCTION_TOOL], "response_format": {"type": "json_object"}}, "response_format"),
    "/v1/responses": ({"tools": [{"type": "function", "strict": None} | TOOL],
                       "text": {"format": {"type": "json_object"}}}, "text.format"),
    "/v1/messages": ({"max_tokens": 9, "tools": [{"name": "paint", "input_schema": SCHEMA}],
                      "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, "output_config.format"),
    "/api/chat": ({"tools": [FUNCTION_TOOL], "format": SCHEMA, "stream": False}, "format")}


def post_with_grammars(serve, path, template, **fields):
    """Post a chat to a model with grammars; return the status, the text of the answer and the engine's requests."""
    messages = {"input" if path == "/v1/responses" else "messages": [{"role": "user", "content": "hi"}]}

    async def scenario(client, engine):
        answer = await client.post(path, json={"model": "loom"} | messages | fields)
        return answer.status, await answer.text(), engine.requests
    return serve(scenario, template=template, grammars=True)


@pytest.mark.parametrize("path", REQUESTS)
def test_every_dialect_takes_tools_with_a_format(serve, path):
    fields, name = REQUESTS[path]
    status, text, requests = post_with_grammars(serve, path, ChatTemplate("<tool_call>", {}), **fields)
    assert (status, [request.grammar.id for request in requests]) == (200, [1]), text
    status, text, _ = post_with_grammars(serve, path, ChatTemplate("<|tool_call>", {}), **fields)
    assert status == 400
    assert f"`{name}` and `tools` are given, but no grammar can be made of calls" in text


REQUIRED_CALLS = {  # by the route: what requires a call of `paint`
    "/v1/chat/completions": [{"tool_choice": "required"}, {"tool_choice": "paint"}],
    "/v1/responses": [{"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "paint"}}],
    "/v1/messages": [{"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool", "name": "paint"}}]}


@pytest.mark.parametrize("path", REQUIRED_CALLS)
def test_format_beside_a_required_call_is_reported_as_ignored(serve, path):
    """OpenAI's API serves such a request, too: a format is that of a text, and there is none."""
    fields, name = REQUESTS[path]

    async def scenario(client, _):
        messages = {"input" if path == "/v1/responses" else "messages": [{"role": "user", "content": "hi"}]}
        for choice, ignored in [*((choice, name) for choice in REQUIRED_CALLS[path]), ({}, None)]:
            answer = await client.post(path, json={"model": "loom"} | messages | fields | choice)
            assert (answer.status, answer.headers.get("x-ignored-fields")) == (200, ignored), await answer.text()
    serve(scenario, template=ChatTemplate("<tool_call>", {}), grammars=True)


def test_constraint_beside_a_required_call_is_reported_by_its_own_name(serve):
    async def scenario(client, _):
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [FUNCTION_TOOL], "tool_choice": "required"}
        for fields, ignored in (({"guided_regex": "a"}, "guided_regex"), ({"structured_outputs": {"choice": ["a"]}},
                                "structured_outputs"), ({"response_format": {"type": "text"}}, None)):
            answer = await client.post("/v1/chat/completions", json=body | fields)
            assert (answer.status, answer.headers.get("x-ignored-fields")) == (200, ignored), await answer.text()
        answer = await client.post("/vertex", json={"instances": [
            {"inputs": "x"}, body | {"response_format": {"type": "json_object"}}]})
        assert (answer.status, answer.headers["x-ignored-fields"]) == (200, "instances.1.response_format")
    serve(scenario, template=ChatTemplate("<tool_call>", {}), grammars=True)


@pytest.mark.parametrize(("tool_choice", "is_accepted"), [("none", True), ("required", True), ("paint", True),
                                                          ("auto", False)])
def test_format_holds_unless_a_call_is_required(serve, tool_choice, is_accepted):
    """Beside a required call nothing else is to be written, so calls of any model go with a format."""
    fields, _ = REQUESTS["/v1/chat/completions"]
    status, _, requests = post_with_grammars(serve, "/v1/chat/completions", ChatTemplate("<|tool_call>", {}),
                                             **fields | {"tool_choice": tool_choice})
    assert (status, len(requests)) == ((200, 1) if is_accepted else (400, 0))
