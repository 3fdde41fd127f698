"""Parsing of model output: every response format, pieces of every size, and text that fits no format."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.text.response_parser import (
    BARE,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    Call,
    CallReader,
    Reader,
    Said,
    Thought,
    joined,
    opening,
    read_whole,
    shape_of,
)

ARGUMENTS = {"city": "Paris", "days": 2, "note": "a \"b\" </tool_cal {x} \u00e9"}
CALL, OTHER = Call("get_weather", json.dumps(ARGUMENTS, ensure_ascii=False)), Call("stop", "{}")


def written(**names: Any) -> str:
    return json.dumps(names, ensure_ascii=False)


FIRST, SECOND = written(name="get_weather", arguments=ARGUMENTS), written(name="stop", arguments={})
ANSWERS: dict[str, tuple[Any, str, str, list[Any]]] = {
    "text": (HERMES, "<|im_start|>assistant\n", "Hello, you!<|im_end|>", [Said("Hello, you!")]),
    "a call": (HERMES, "<|im_start|>assistant\n", f"<tool_call>\n{FIRST}\n</tool_call><|im_end|>", [CALL]),
    "text and two calls": (
        HERMES, "<|im_start|>assistant\n",
        f"Well.\n<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call><|im_end|>",
        [Said("Well."), CALL, OTHER]),
    "a thought": (HERMES, "<|im_start|>assistant\n", f"<think>\nHm.\n</think>\n\n<tool_call>{SECOND}</tool_call>",
                  [Thought("\nHm.\n"), OTHER]),
    "a thought that the prompt began": (
        HERMES, "<|im_start|>assistant\n<think>\n", "Hm.\n</think>\nHello.", [Thought("Hm.\n"), Said("Hello.")]),
    "a call of llama": (
        LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"<|python_tag|>{written(name='get_weather', parameters=ARGUMENTS)}<|eom_id|>", [CALL]),
    "a bare call of llama": (
        LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\n",
        f"{written(name='get_weather', parameters=ARGUMENTS)}<|eot_id|>", [CALL]),
    "text of llama": (
        LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\n", "It is {a}.<|eot_id|>", [Said("It is {a}.")]),
    "calls of mistral": (MISTRAL, "[/INST]", f"[TOOL_CALLS] [{FIRST}, {SECOND}]</s>", [CALL, OTHER]),
    "calls of later mistrals": (
        MISTRAL_NAMED, "[/INST]",
        f"[TOOL_CALLS]get_weather[ARGS]{written(**ARGUMENTS)}[TOOL_CALLS]stop[ARGS]{{}}</s>", [CALL, OTHER]),
    "text of mistral": (MISTRAL, "[/INST]", " Hello.</s>", [Said(" Hello.")]),
    "a call that breaks off": (
        HERMES, "<|im_start|>assistant\n", 'Well. <tool_call>\n{"name": "g',
        [Said('Well. <tool_call>\n{"name": "g')]),
    "a call that is none": (
        HERMES, "<|im_start|>assistant\n", "<tool_call>x</tool_call>y<|im_end|>", [Said("<tool_call>x</tool_call>y")]),
    "a call without a name": (
        HERMES, "<|im_start|>assistant\n<think>\n", "a</think>\n<tool_call>{}</tool_call>",
        [Thought("a"), Said("<tool_call>{}</tool_call>")]),
    "arguments that are none": (
        HERMES, "<|im_start|>assistant\n", '<tool_call>{"name": "a", "arguments": 5}</tool_call>',
        [Said('<tool_call>{"name": "a", "arguments": 5}</tool_call>')]),
    "a good call and a bad one": (
        HERMES, "<|im_start|>assistant\n", f"<tool_call>{SECOND}</tool_call>\n<tool_call>x</tool_call>",
        [OTHER, Said("</tool_call>\n<tool_call>x</tool_call>")]),
    "json of a model that was told in words": (BARE, "", f" {FIRST}", [CALL]),
    "text of a model that was told in words": (BARE, "", "It is {a}.", [Said("It is {a}.")]),
    "other json": (BARE, "", '{"a": 1}', [Said('{"a": 1}')]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_back(name: str) -> None:
    shape, prompt, text, parts = ANSWERS[name]
    assert read_whole(Reader(shape, f"before {prompt}"), [text]) == parts


@given(data=st.data(), name=st.sampled_from(sorted(ANSWERS)))
def test_pieces_of_every_size_say_the_same(data: st.DataObject, name: str) -> None:
    shape, prompt, text, parts = ANSWERS[name]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read_whole(Reader(shape, prompt), pieces) == parts


@given(text=st.text(st.sampled_from("<tool_call>/{}\"name: a\n"), max_size=60), size=st.integers(1, 5))
def test_no_text_is_an_error(text: str, size: int) -> None:
    read_whole(Reader(HERMES, ""), [text[place:place + size] for place in range(0, len(text), size)])


def test_what_is_nested_too_deeply_is_text() -> None:
    text = '<tool_call>\n{"name": "a", "arguments": ' + "[" * 100_000 + "]" * 100_000 + "}\n</tool_call>"
    assert read_whole(Reader(HERMES, ""), [text]) == [Said(text)]
    call = text[len("<tool_call>\n"):]
    assert read_whole(CallReader(), [call]) == [Said(call)]


@pytest.mark.parametrize(("template", "shape"), [
    ("{{ '<tool_call>' }}", HERMES), ("[TOOL_CALLS]", MISTRAL), ("[TOOL_CALLS]a[ARGS]", MISTRAL_NAMED),
    ("<|start_header_id|>", LLAMA), ("<tool_call><function=", None), ("plain", None)])
def test_the_chat_template_tells_the_shape(template: str, shape: Any) -> None:
    assert shape_of(template) == shape


def test_neighbours_of_one_kind_are_joined() -> None:
    assert joined([Said("a"), Said("b"), Thought("c"), Thought("d"), CALL, CALL]) == [
        Said("ab"), Thought("cd"), CALL, CALL]


# -- required calls

@pytest.mark.parametrize(("shape", "template", "opens"), [
    (HERMES, "{{ '<tool_call>\\n' }}", "<tool_call>\n"), (HERMES, "<tool_call>\n{{", "<tool_call>\n"),
    (HERMES, "<tool_call>{{", "<tool_call>"), (LLAMA, "", ""), (MISTRAL, "", ""), (MISTRAL_NAMED, "", ""),
    (BARE, "", ""), (None, "<tool_call>", ""), ({"fields": {}}, "", ""),
    ({"fields": {"tool_calls": {"open": "[CALL]", "content": "json", "repeats": True}}}, "", "[CALL]"),
    ({"fields": {"tool_calls": {"open_pattern": r"\[CALL\]\s*", "content": "json", "repeats": True}}}, "", "[CALL]")])
def test_what_stands_before_a_call(shape: Any, template: str, opens: str) -> None:
    assert opening(shape, template) == opens


@pytest.mark.parametrize(("text", "part"), [
    (FIRST, CALL), (f" {SECOND}<|im_end|>", OTHER), ('{"name": "g', Said('{"name": "g')), ("[1]", Said("[1]")),
    ("", Said(""))])
def test_what_must_be_a_call_is_one_once_it_is_whole(text: str, part: Any) -> None:
    reader = CallReader()
    assert [found for letter in text for found in reader.feed(letter)] == []
    assert reader.finish() == [part]
