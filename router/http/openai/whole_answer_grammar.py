"""Grammars of whole answers in chats: behind the model's reasoning stands a required call, an answer in a format, or,
where the model may choose, either calls or such an answer."""

from collections.abc import Sequence
from dataclasses import replace

from router.errors import InvalidTools
from router.grammars.chat_grammar import ChatGrammar, make_grammar_node, make_output_grammar
from router.grammars.output_grammar_writer import BLANK_NODE, Node
from router.grammars.parameters import Grammar, make_json_schema_grammar
from router.http.openai.request_tools import FunctionCallSchema, Tool, iterate_function_schemas, make_call_grammar
from router.http.openai.requests import ChatRequest
from router.text.chat_template import ChatTemplate
from router.text.output_formats import BARE_JSON_FORMAT, PLACEHOLDER_PATTERN, OutputSyntax, get_output_syntax
from router.validation.validator import GenerationInput


def constrain_answer(template: ChatTemplate | None, chat_request: ChatRequest,
                     generation_input: GenerationInput) -> GenerationInput:
    """Return a chat whose grammar, of a required call or of a text, has become that of the model's whole output. Raises
    InvalidRequest and InvalidTools."""
    needs_call = chat_request.needs_tool_call
    generation_input = allow_reasoning_before_grammar(generation_input, template, is_required_call=needs_call)
    if needs_call or not chat_request.may_call_tool:
        return generation_input
    return allow_tool_calls(generation_input, template, chat_request.tools or (),
                            has_one_call=chat_request.parallel_tool_calls is False)


def allow_reasoning_before_grammar(generation_input: GenerationInput, template: ChatTemplate | None, *,
                                   is_required_call: bool) -> GenerationInput:
    """Return a chat whose grammar, of a required call or of an answer, begins behind the reasoning, if the model's
    template knows any."""
    grammar = generation_input.grammar
    if template is None or template.reasoning_format is None or not isinstance(grammar, Grammar):
        return generation_input
    syntax = get_output_syntax(template.reasoning_format)
    opening = (is_required_call and template.tool_call_opening) or syntax.answer_opening
    return replace(generation_input, grammar=ChatGrammar(grammar, syntax, opening))


def allow_tool_calls(generation_input: GenerationInput, template: ChatTemplate | None, tools: Sequence[Tool], *,
                     has_one_call: bool) -> GenerationInput:
    """Return a chat in a format, behind reasoning or not, whose answer may be calls instead. Raises InvalidTools if no
    grammar can be made of the calls of this model."""
    name, grammar = generation_input.parameter_names.grammar, generation_input.grammar
    output_format = BARE_JSON_FORMAT if template is None else template.output_format or BARE_JSON_FORMAT
    syntax = get_output_syntax(output_format)
    if not syntax.call:
        raise InvalidTools(f"`{name}` and `tools` are given, but no grammar can be made of calls in this model's "
                           "format; set `tool_choice`, or leave one of them out")
    assert grammar is not None, "calls are allowed beside a format"
    functions = [*iterate_function_schemas(tools)]
    calls = make_tool_calls_node(syntax, functions, has_one_call=has_one_call)
    fault = next((function.reference_fault for function in functions if function.reference_fault), "")
    chat_grammar = grammar if isinstance(grammar, ChatGrammar) else ChatGrammar(grammar, syntax)
    return replace(generation_input, grammar=replace(chat_grammar, calls=make_output_grammar(calls, fault)))


def make_tool_calls_node(syntax: OutputSyntax, functions: Sequence[FunctionCallSchema], *, has_one_call: bool) -> Node:
    """Return the grammar of one or more calls as the model writes them."""
    if "{call}" in syntax.call:
        call = make_template_node(
            syntax.call, {"call": make_grammar_node(make_call_grammar(functions, syntax.arguments_key))})
    else:
        call = ["choice", *(make_template_node(syntax.call, make_function_nodes(syntax, function))
                            for function in functions)]
    if not has_one_call and not syntax.has_one_call:
        call = ["repeat", call, make_template_node(syntax.calls_separator, {})]
    return ["sequence", make_template_node(syntax.calls_opening, {}), call, ["text", syntax.calls_closing]]


def make_function_nodes(syntax: OutputSyntax, function: FunctionCallSchema) -> dict[str, Node]:
    """Return the parts of a call of a function, by their placeholders."""
    name = function.name
    if "{arguments}" in syntax.call:
        return {"name": ["text", name],
                "arguments": make_grammar_node(make_json_schema_grammar("tools", function.arguments))}
    before, behind = syntax.parameter
    parameters = [["sequence", make_template_node(before, {"name": ["text", parameter]}), ["until", behind]]
                  for parameter in function.arguments.get("properties", {})]
    nodes = ["optional", ["repeat", ["choice", *parameters], ["text", ""]]] if parameters else ["text", ""]
    return {"name": ["text", name], "parameters": nodes}


def make_template_node(text: str, nodes: dict[str, Node]) -> Node:
    """Return the grammar of a text with placeholders."""
    pieces = PLACEHOLDER_PATTERN.split(text)
    return ["sequence", *([*({"blank": BLANK_NODE} | nodes)[piece]] if index % 2 else ["text", piece]
                          for index, piece in enumerate(pieces))]
