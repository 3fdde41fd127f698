"""Formats of models' outputs, as data: where reasoning, tool calls and content stand in the text, and how a grammar
writes them. A format (`OutputFormat`) is a `response_template` of transformers: that of tokenizer_config.json, or one
of those below, chosen by strings in the chat template."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

OutputFormat = Mapping[str, Any]
SYNTAX_KEY = "syntax"  # key of a format's `OutputSyntax`, which transformers does not know
TOOL_CALLS_FIELD, REASONING_FIELDS = "tool_calls", ("reasoning_content", "reasoning", "thinking")
CONTENT = {"repeats": True, "join": "", "content_args": {"strip": False}}
BLANK = "{blank}"
PLACEHOLDER_PATTERN = re.compile(r"\{(call|name|arguments|parameters|blank)\}")  # in texts of an OutputSyntax
# How formats make a call of JSON.
CALL_TRANSFORM: Any = {"function": "{content}"}
NAMED_CALL_TRANSFORM: Any = {"function": {"name": "{name}", "arguments": "{content}"}}


@dataclass(frozen=True, slots=True)
class OutputSyntax:
    """Texts of an output, from which grammars are made. Tokens that end an output are left out, since a grammar ends
    before them."""

    thoughts: tuple[str, str] | None = None  # what opens reasoning and what closes it; None if there is none
    thoughts_end: str = ""  # behind the closing
    answer_opening: str = ""
    # A call: its JSON as {call}, or {name} with {arguments} (JSON) or {parameters} (each within `parameter`). {blank}
    # is whitespace. Empty if no grammar is made of calls.
    call: str = ""
    arguments_key: str = "arguments"  # of the JSON of a call, beside `name`
    parameter: tuple[str, str] = ("", "")  # before a value, with {name}, and behind it
    calls_opening: str = ""  # before the first call
    calls_separator: str = ""
    calls_closing: str = ""  # behind the last call
    has_one_call: bool = False

    @property
    def call_mark(self) -> str:
        """The text that calls begin with; empty if that is their JSON."""
        return PLACEHOLDER_PATTERN.split(self.calls_opening + self.call, maxsplit=1)[0].strip()


class ReasoningState(Enum):
    """Whether an answer begins with reasoning, by the end of its prompt."""

    OPEN = "open"  # the prompt has begun it
    POSSIBLE = "possible"
    CLOSED = "closed"  # the prompt has ended it, or the model knows none


@dataclass(frozen=True, slots=True)
class AnswerBeginning:
    """Beginning of an answer that is in the prompt of its chat."""

    text: str = ""  # from the format's start anchor on
    reasoning_state: ReasoningState = ReasoningState.CLOSED


NO_ANSWER_BEGINNING = AnswerBeginning()
THINK_TAGS, MISTRAL_THINK_TAGS = ("<think>", "</think>"), ("[THINK]", "[/THINK]")
THINK_FIELD = {"open": "<think>", "close_pattern": r"</think>\s{0,16}"}
MISTRAL_THINK_FIELD = {"open": "[THINK]", "close_pattern": r"\[/THINK\]\s{0,16}"}
# Repetitions in patterns are bounded: each piece of the output is searched again from where a match may begin.
# Invalid calls are rejected one by one, by `parse_tool_call`: the parser would also drop valid ones of the same piece.
JSON_CALLS = {"content": "json", "content_args": {"allow_non_json": True}}
HERMES_FORMAT: OutputFormat = {
    "start_anchor": "<|im_start|>assistant\n",
    SYNTAX_KEY: OutputSyntax(THINK_TAGS, call="<tool_call>\n{call}\n</tool_call>", calls_separator="\n"),
    "fields": {
        "reasoning_content": THINK_FIELD,
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}<tool_call>", "close": "</tool_call>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\|im_end\|>"},
    },
}
QWEN_CODER_FORMAT: OutputFormat = {
    "start_anchor": "<|im_start|>assistant\n",
    SYNTAX_KEY: OutputSyntax(
        THINK_TAGS, call="<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>",
        parameter=("<parameter={name}>\n", "\n</parameter>\n"), calls_separator="\n"),
    "fields": {
        "reasoning_content": THINK_FIELD,
        "tool_calls": {"content": "xml-inline", "content_args": {
                           "tag_pattern": r"<parameter=(?P<key>[^>\n]{1,128})>\n?(?P<value>.*?)\n?</parameter>"},
                       "open_pattern": r"\s{0,16}<tool_call>\s{0,16}<function=(?P<name>[^>\n]{1,128})>",
                       "close_pattern": r"</function>\s{0,16}</tool_call>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\|im_end\|>"},
    },
}
LLAMA_FORMAT: OutputFormat = {
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    SYNTAX_KEY: OutputSyntax(call="{call}", arguments_key="parameters", has_one_call=True),
    "fields": {
        "tool_calls": {**JSON_CALLS,
                       "open_pattern": r"\s{0,16}<\|python_tag\|>\s{0,16}|\A\s{0,16}(?=\{\s{0,16}\"name\")",
                       "close_pattern": r"<\|eom_id\|>|<\|eot_id\|>", "repeats": True,
                       "transform": {"function": "{content}"}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}(?:<\|eom_id\|>|<\|eot_id\|>)"},
    },
}
MISTRAL_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    SYNTAX_KEY: OutputSyntax(MISTRAL_THINK_TAGS, call="{call}", calls_opening="[TOOL_CALLS]{blank}[",
                             calls_separator=", ", calls_closing="]"),
    "fields": {
        "reasoning_content": MISTRAL_THINK_FIELD,
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}\[TOOL_CALLS\]\s{0,16}", "close": "</s>"},
        "content": {**CONTENT, "close": "</s>"},
    },
}
MISTRAL_NAMED_FORMAT: OutputFormat = {
    "start_anchor": "[/INST]",
    SYNTAX_KEY: OutputSyntax(MISTRAL_THINK_TAGS, call="[TOOL_CALLS]{name}[ARGS]{arguments}"),
    "fields": {
        "reasoning_content": MISTRAL_THINK_FIELD,
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}\[TOOL_CALLS\](?P<name>[^\[\s]{1,128})\s{0,16}"
                                                     r"(?:\[CALL_ID\][^\[\s]{1,64})?\[ARGS\]\s{0,16}",
                       "close_pattern": r"</s>|(?=\[TOOL_CALLS\])", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close": "</s>"},
    },
}
DEEPSEEK_FORMAT: OutputFormat = {
    "start_anchor": "<\uff5cAssistant\uff5c>",
    SYNTAX_KEY: OutputSyntax(
        THINK_TAGS, calls_opening="<\uff5ctool\u2581calls\u2581begin\uff5c>", calls_separator="\n",
        call="<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>{name}\n```json\n{arguments}\n```"
             "<\uff5ctool\u2581call\u2581end\uff5c>", calls_closing="<\uff5ctool\u2581calls\u2581end\uff5c>"),
    "fields": {
        "reasoning_content": THINK_FIELD,
        "tool_calls": {**JSON_CALLS,
                       "open_pattern": r"\s{0,16}(?:<\uff5ctool\u2581calls\u2581begin\uff5c>)?\s{0,16}"
                                       r"<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>"
                                       r"(?P<name>[^\n]{1,128})\n```json\n",
                       "close": "\n```<\uff5ctool\u2581call\u2581end\uff5c>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "after_calls": {"open": "<\uff5ctool\u2581calls\u2581end\uff5c>",
                        "close": "<\uff5cend\u2581of\u2581sentence\uff5c>"},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\uff5cend\u2581of\u2581sentence\uff5c>"},
    },
}
# The recipient of a call stands in its role, as in the template, or in its channel, as models write it.
HARMONY_FORMAT: OutputFormat = {
    "start_anchor": "<|start|>assistant",
    SYNTAX_KEY: OutputSyntax(
        ("<|channel|>analysis<|message|>", "<|end|>"), thoughts_end="<|start|>assistant",
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
        answer_opening="<|channel|>final<|message|>", has_one_call=True),
    "fields": {
        "reasoning_content": {"open": ["<|channel|>analysis<|message|>",
                                       "<|start|>assistant<|channel|>analysis<|message|>"],
                              "close_pattern": r"<\|end\|>"},
        "tool_calls": {**JSON_CALLS,
                       "open_pattern": r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis))? ?"
                                       r"to=functions\.(?P<name>[^\s<]{1,128}) ?"
                                       r"(?:<\|channel\|>(?:commentary|analysis))? ?"
                                       r"(?:<\|constrain\|>)?(?:json)?<\|message\|>",
                       "close_pattern": r"<\|call\|>|<\|end\|>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "final": {"open_pattern": r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary) ?"
                                  r"(?:<\|constrain\|>[^\s<]{1,64})?<\|message\|>",
                  "close_pattern": r"<\|return\|>|<\|end\|>", "repeats": True, "join": "",
                  "content_args": {"strip": False}},
        "content": CONTENT,
    },
}
GRANITE_FORMAT: OutputFormat = {
    "start_anchor": "<|start_of_role|>assistant<|end_of_role|>",
    SYNTAX_KEY: OutputSyntax(THINK_TAGS, call="{call}", calls_opening="<|tool_call|>[", calls_separator=", ",
                             calls_closing="]"),
    "fields": {
        "reasoning_content": THINK_FIELD,
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\s{0,16}<\|tool_call\|>\s{0,16}", "close": "<|end_of_text|>"},
        "response": {"open_pattern": r"<response>\s{0,16}", "close_pattern": r"\s{0,16}</response>",
                     "content_args": {"strip": False}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<\|end_of_text\|>"},
    },
}
GRANITE_HERMES_FORMAT: OutputFormat = {
    **HERMES_FORMAT, "start_anchor": GRANITE_FORMAT["start_anchor"],
    "fields": {**HERMES_FORMAT["fields"], "content": GRANITE_FORMAT["fields"]["content"]},
}
# The arguments of Gemma's calls are JSON with bare keys, whose strings stand between tokens of their own.
GEMMA_FORMAT: OutputFormat = {
    "start_anchor": "<|turn>model\n",
    SYNTAX_KEY: OutputSyntax(("<|channel>thought\n", "<channel|>")),
    "fields": {
        "reasoning_content": {"open": "<|channel>thought\n", "close_pattern": r"\s{0,16}<channel\|>\s{0,16}"},
        "tool_calls": {"content": "json",
                       "content_args": {"allow_non_json": True, "unquoted_keys": True,
                                        "string_delims": [['<|"|>', '<|"|>']]},
                       "open_pattern": r"\s{0,16}<\|tool_call>call:(?P<name>[^{\s]{1,128})(?=\{)",
                       "close": "<tool_call|>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<turn\|>|<\|tool_response>"},
    },
}
FUNCTION_GEMMA_FORMAT: OutputFormat = {
    "start_anchor": "<start_of_turn>model\n",
    SYNTAX_KEY: OutputSyntax(),
    "fields": {
        "tool_calls": {"content": "json",
                       "content_args": {"allow_non_json": True, "unquoted_keys": True,
                                        "string_delims": [["<escape>", "<escape>"]]},
                       "open_pattern": r"\s{0,16}<start_function_call>call:(?P<name>[^{\s]{1,128})(?=\{)",
                       "close": "<end_function_call>", "repeats": True,
                       "transform": {"function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}<end_of_turn>|<start_function_response>"},
    },
}
DEEPSEEK_LATER_FORMAT: OutputFormat = {
    **DEEPSEEK_FORMAT,
    SYNTAX_KEY: replace(
        DEEPSEEK_FORMAT[SYNTAX_KEY], calls_separator="",
        call="<\uff5ctool\u2581call\u2581begin\uff5c>{name}<\uff5ctool\u2581sep\uff5c>{arguments}"
             "<\uff5ctool\u2581call\u2581end\uff5c>"),
    "fields": {
        **DEEPSEEK_FORMAT["fields"],
        "tool_calls": {**DEEPSEEK_FORMAT["fields"]["tool_calls"],
                       "open_pattern": r"\s{0,16}(?:<\uff5ctool\u2581calls\u2581begin\uff5c>)?\s{0,16}"
                                       r"<\uff5ctool\u2581call\u2581begin\uff5c>(?P<name>[^\n<]{1,128})"
                                       r"<\uff5ctool\u2581sep\uff5c>",
                       "close": "<\uff5ctool\u2581call\u2581end\uff5c>"},
    },
}
LLAMA_4_FORMAT: OutputFormat = {
    "start_anchor": "<|header_start|>assistant<|header_end|>\n\n",
    SYNTAX_KEY: LLAMA_FORMAT[SYNTAX_KEY],
    "fields": {
        "tool_calls": {**LLAMA_FORMAT["fields"]["tool_calls"],
                       "open_pattern": r"\s{0,16}<\|python_start\|>\s{0,16}|\A\s{0,16}(?=\{\s{0,16}\"name\")",
                       "close_pattern": r"<\|python_end\|>|<\|eom\|>|<\|eot\|>"},
        "content": {**CONTENT, "close_pattern": r"\s{0,16}(?:<\|eom\|>|<\|eot\|>)"},
    },
}
# For models whose prompt describes the tools in plain text: an answer that is JSON is a call.
BARE_JSON_FORMAT: OutputFormat = {
    "start_anchor": "\0",  # occurs in no prompt
    SYNTAX_KEY: OutputSyntax(call="{call}", has_one_call=True),
    "fields": {
        "tool_calls": {**JSON_CALLS, "open_pattern": r"\A\s{0,16}(?:```(?:json)?\s{0,16})?(?=\{\s{0,16}\"name\")",
                       "close_pattern": r"\s{0,16}```", "repeats": True},
        "content": CONTENT,
    },
}
# Its calls are no field but Python: pythonic_calls.py reads them.
PYTHONIC_FORMAT: OutputFormat = {"start_anchor": "\0", "fields": {"content": CONTENT}}
# The first of these strings that a chat template contains determines the format of its model's output.
FORMAT_BY_TEMPLATE_MARKER: Mapping[str, OutputFormat] = {
    "func_name1(": PYTHONIC_FORMAT, "<|channel|>": HARMONY_FORMAT, "<|tool_call>": GEMMA_FORMAT,
    "<start_function_call>": FUNCTION_GEMMA_FORMAT,
    "<|tool_call|>": GRANITE_FORMAT, "<function=": QWEN_CODER_FORMAT, "<tool_call>": HERMES_FORMAT,
    "[ARGS]": MISTRAL_NAMED_FORMAT, "[TOOL_CALLS]": MISTRAL_FORMAT, "[THINK]": MISTRAL_NAMED_FORMAT,
    "<\uff5cAssistant\uff5c>": DEEPSEEK_FORMAT, "<|python_tag|>": LLAMA_FORMAT, "<|start_header_id|>": LLAMA_FORMAT,
    "<|header_start|>": LLAMA_4_FORMAT,
}


def detect_output_format(template: str) -> OutputFormat | None:
    output_format = next((output_format for marker, output_format in FORMAT_BY_TEMPLATE_MARKER.items()
                          if marker in template), None)
    if output_format is HERMES_FORMAT and "<|start_of_role|>" in template:
        return GRANITE_HERMES_FORMAT
    if output_format is DEEPSEEK_FORMAT and "\u2581sep\uff5c>" in template and "```json" not in template:
        return DEEPSEEK_LATER_FORMAT
    return output_format


def find_reasoning_format(output_format: OutputFormat | None, template: str) -> OutputFormat | None:
    """Return the format of answers without tool calls if the model's template knows reasoning, else None."""
    openings = [] if output_format is None else get_reasoning_openings(output_format)
    if output_format is None or not any(opening in template for opening in openings):
        return None
    return without_tool_calls(output_format)


def get_reasoning_openings(output_format: OutputFormat) -> list[str]:
    """Return the texts that may open reasoning; none if only a pattern describes them."""
    fields = output_format["fields"]
    values = [fields[name].get("open", []) for name in REASONING_FIELDS if name in fields]
    return [opening for value in values for opening in ([value] if isinstance(value, str) else value)]


def get_output_syntax(output_format: OutputFormat) -> OutputSyntax:
    """Return the format's own syntax. For a model's own format make one of the marks around its reasoning, and around
    calls that are objects of JSON, as far as these marks are fixed."""
    if isinstance(syntax := output_format.get(SYNTAX_KEY), OutputSyntax):
        return syntax
    fields = output_format["fields"]
    thoughts = next((find_field_delimiters(fields[name]) for name in REASONING_FIELDS if name in fields), None)
    calls = fields.get(TOOL_CALLS_FIELD, {})
    marks = find_field_delimiters(calls) if is_json_call(calls, CALL_TRANSFORM) and calls.get("repeats") else None
    if marks is None:
        return OutputSyntax(thoughts)
    return OutputSyntax(thoughts, call=f"{marks[0]}{BLANK}{{call}}{BLANK}{marks[1]}", calls_separator=BLANK)


def find_field_delimiters(field: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the texts that open and close a field, without whitespace; None if they are not fixed."""
    opening, closing = find_field_delimiter(field, "open"), find_field_delimiter(field, "close")
    return (opening, closing) if opening and closing else None


def find_field_delimiter(field: Mapping[str, Any], kind: str) -> str:
    """Return the text that opens or closes a field; empty if it is not fixed."""
    if isinstance(text := field.get(kind), str):
        return text
    pattern = re.sub(r"^\\s(?:\*|\{0,16\})|\\s(?:\*|\{0,16\})$", "", field.get(f"{kind}_pattern", ""))
    unescaped = re.sub(r"\\(\W)", r"\1", pattern)
    return unescaped if re.escape(unescaped) == pattern else ""


def is_json_call(field: Mapping[str, Any], *transforms: Any) -> bool:
    """Return whether a field is plain JSON, from which one of these transforms makes calls."""
    transform = field.get("transform")
    if isinstance(transform, dict):
        transform = {key: value for key, value in transform.items() if key != "type"}
    return (field.get("content") == "json" and field.get("content_args", {}).keys() <= {"allow_non_json"}
            and transform in transforms)


def find_begun_answer(output_format: OutputFormat, prompt: str) -> str:
    """Return the end of the prompt that is the beginning of the answer, from the format's start anchor on. Where a
    template of another family lacks the anchor, only an opening of reasoning at the end counts."""
    _, anchor, rest = prompt.rpartition(str(output_format.get("start_anchor", "")) or "\0")
    if anchor:
        return anchor + rest
    end = prompt.rstrip()
    return next((prompt[len(end) - len(mark):] for opening in get_reasoning_openings(output_format)
                 if end.endswith(mark := opening.rstrip())), "")


def find_reasoning_state(output_format: OutputFormat, prompt: str) -> ReasoningState:
    thoughts = get_output_syntax(output_format).thoughts
    if thoughts is None:
        return ReasoningState.CLOSED
    beginning = find_begun_answer(output_format, prompt).removeprefix(str(output_format.get("start_anchor", "")))
    opened, closed = (beginning.rfind(mark.rstrip()) for mark in thoughts)
    if opened > closed:
        return ReasoningState.OPEN
    has_begun = bool(beginning.strip()) or prompt.rstrip().endswith(thoughts[1].rstrip())
    return ReasoningState.CLOSED if has_begun else ReasoningState.POSSIBLE


def without_tool_calls(output_format: OutputFormat) -> OutputFormat:
    return without_fields(output_format, TOOL_CALLS_FIELD)


def without_fields(output_format: OutputFormat, *names: str) -> OutputFormat:
    return {**output_format, "fields": {name: field for name, field in output_format["fields"].items()
                                        if name not in names}}


def get_tool_call_start(output_format: OutputFormat | None, template: str) -> str:
    """Return the text that precedes the JSON of a call; empty if that is not fixed, or if calls form a list."""
    field = (output_format or {}).get("fields", {}).get(TOOL_CALLS_FIELD, {})
    if field.get("content") != "json" or not field.get("repeats"):
        return ""
    text = find_field_delimiter(field, "open")
    return f"{text}\n" if text and (f"{text}\\n" in template or f"{text}\n" in template) else text


def has_json_calls(output_format: OutputFormat) -> bool:
    """Return whether calls are JSON, which is valid only if a call is whole."""
    return bool(output_format["fields"].get(TOOL_CALLS_FIELD, {}).get("content") == "json")
