"""Formats of models' outputs: how they are recognized, what their patterns match, and what grammars know of them."""

import re._parser as re_parser
from typing import Any

import pytest

from router.text.output_formats import (
    BARE_JSON_FORMAT,
    DEEPSEEK_FORMAT,
    DEEPSEEK_LATER_FORMAT,
    FUNCTION_GEMMA_FORMAT,
    GEMMA_FORMAT,
    GRANITE_FORMAT,
    GRANITE_HERMES_FORMAT,
    HARMONY_FORMAT,
    HERMES_FORMAT,
    LLAMA_4_FORMAT,
    LLAMA_FORMAT,
    MISTRAL_FORMAT,
    MISTRAL_NAMED_FORMAT,
    PYTHONIC_FORMAT,
    QWEN_CODER_FORMAT,
    SYNTAX_KEY,
    OutputSyntax,
    ReasoningState,
    detect_output_format,
    find_begun_answer,
    find_reasoning_state,
    get_output_syntax,
    get_tool_call_start,
)


@pytest.mark.parametrize(("template", "shape"),
                         [("{{ '<tool_call>' }}", HERMES_FORMAT), ("[TOOL_CALLS]", MISTRAL_FORMAT),
                          ("[TOOL_CALLS]a[ARGS]", MISTRAL_NAMED_FORMAT), ("<|start_header_id|>", LLAMA_FORMAT),
                          ("<tool_call><function=", QWEN_CODER_FORMAT), ("plain", None),
                          ("<|channel|>analysis", HARMONY_FORMAT), ("<|start_of_role|> <|tool_call|>", GRANITE_FORMAT),
                          ("<|start_of_role|> <tool_call>", GRANITE_HERMES_FORMAT), ("<|tool_call>", GEMMA_FORMAT),
                          ("<\uff5cAssistant\uff5c>", DEEPSEEK_FORMAT), ("<|header_start|>", LLAMA_4_FORMAT),
                          ("<\uff5cAssistant\uff5c> f<\uff5ctool\u2581sep\uff5c>{}", DEEPSEEK_LATER_FORMAT),
                          ("<start_function_call>", FUNCTION_GEMMA_FORMAT), ("[THINK]", MISTRAL_NAMED_FORMAT),
                          ("<|start_header_id|>[func_name1(a=b)]", PYTHONIC_FORMAT)])
def test_response_format_is_recognized_from_the_chat_template(template: str, shape: Any) -> None:
    assert detect_output_format(template) == shape


@pytest.mark.parametrize(("shape", "template", "opens"), [
    (HERMES_FORMAT, "{{ '<tool_call>\\n' }}", "<tool_call>\n"), (HERMES_FORMAT, "<tool_call>\n{{", "<tool_call>\n"),
    (HERMES_FORMAT, "<tool_call>{{", "<tool_call>"), (LLAMA_FORMAT, "", ""), (MISTRAL_FORMAT, "", ""),
    (MISTRAL_NAMED_FORMAT, "", ""),
    (BARE_JSON_FORMAT, "", ""), (None, "<tool_call>", ""), ({"fields": {}}, "", ""),
    ({"fields": {"tool_calls": {"open": "[CALL]", "content": "json", "repeats": True}}}, "", "[CALL]"),
    ({"fields": {"tool_calls": {"open_pattern": r"\[CALL\]\s*", "content": "json", "repeats": True}}}, "", "[CALL]")])
def test_opening_of_a_tool_call_is_found(shape: Any, template: str, opens: str) -> None:
    assert get_tool_call_start(shape, template) == opens


@pytest.mark.parametrize(("shape", "prompt", "state"), [
    (HERMES_FORMAT, "<|im_start|>assistant\n", "possible"), (HERMES_FORMAT, "<|im_start|>assistant\n<think>\n", "open"),
    (HERMES_FORMAT, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),
    (HERMES_FORMAT, "<|im_start|>user\n<think>\n<|im_start|>assistant\nWell", "closed"),
    (HERMES_FORMAT, "<other>model\n", "possible"), (HERMES_FORMAT, "<other>model\n<think>\n", "open"),
    (HERMES_FORMAT, "<other>model\n<think>\n\n</think>\n\n", "closed"),
    (DEEPSEEK_FORMAT, "<\uff5cAssistant\uff5c></think>", "closed"), (HARMONY_FORMAT, "<|start|>assistant", "possible"),
    (LLAMA_FORMAT, "<think>", "closed"), (GEMMA_FORMAT, "<other>a<|channel>thought\n", "open"),
    ({"start_anchor": "A:", "fields": {"thinking": {"open": "(", "close": ")"}}}, "A:(", "open"),
    ({"start_anchor": "A:", "fields": {"thinking": {"open_pattern": "(", "close": ")"}}}, "A:(", "closed")])
def test_prompt_tells_whether_the_answer_begins_with_reasoning(shape: Any, prompt: str, state: str) -> None:
    assert find_reasoning_state(shape, prompt) == ReasoningState(state)


@pytest.mark.parametrize("output_format", [HERMES_FORMAT, LLAMA_FORMAT, MISTRAL_FORMAT, MISTRAL_NAMED_FORMAT,
                                           QWEN_CODER_FORMAT, DEEPSEEK_FORMAT, BARE_JSON_FORMAT, HARMONY_FORMAT,
                                           GRANITE_FORMAT, GRANITE_HERMES_FORMAT, GEMMA_FORMAT, FUNCTION_GEMMA_FORMAT,
                                           DEEPSEEK_LATER_FORMAT, LLAMA_4_FORMAT])
def test_patterns_match_only_text_of_bounded_length(output_format: dict[str, Any]) -> None:
    """Regression: whitespace without end was searched again with each piece, in time that grew with its cube."""
    for field in output_format["fields"].values():
        for name in ("open_pattern", "close_pattern"):
            assert re_parser.parse(field.get(name, "")).getwidth()[1] < 1000


@pytest.mark.parametrize(("shape", "prompt", "beginning"), [
    (HERMES_FORMAT, "a<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n<think>\n"),
    (HERMES_FORMAT, "a<think>\n", "<think>\n"), (GEMMA_FORMAT, "a<|channel>thought\n", "<|channel>thought\n"),
    (HERMES_FORMAT, "a<think>b", ""), (LLAMA_FORMAT, "a", "")])
def test_beginning_of_the_answer_is_the_end_of_the_prompt(shape: Any, prompt: str, beginning: str) -> None:
    assert find_begun_answer(shape, prompt) == beginning


@pytest.mark.parametrize(("output_format", "syntax"), [
    (HERMES_FORMAT, HERMES_FORMAT[SYNTAX_KEY]), ({"fields": {"content": {}}}, OutputSyntax()),
    ({"fields": {"thinking": {"open": "(", "close_pattern": r"\)\s*"}}}, OutputSyntax(("(", ")"))),
    ({"fields": {"thinking": {"open": "(", "close_pattern": "[)]"}}}, OutputSyntax()),
    ({"fields": {"tool_calls": {"open": "<c>", "close": "</c>", "content": "json", "repeats": True, "transform": {
        "type": "function", "function": "{content}"}}}},
     OutputSyntax(call="<c>{blank}{call}{blank}</c>", calls_separator="{blank}")),
    ({"fields": {"tool_calls": {"open": "<c>", "close": "</c>", "content": "json", "repeats": True, "transform": {
        "function": "{content.f}"}}}}, OutputSyntax()),
    ({"fields": {"tool_calls": {"open": "<c>", "close": "</c>", "content": "text"}}}, OutputSyntax())])
def test_marks_of_a_format_are_found(output_format: Any, syntax: OutputSyntax) -> None:
    assert get_output_syntax(output_format) == syntax
