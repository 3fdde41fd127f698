"""Tests of constrained answers from `weft serve` with a small random model.

Each answer is JSON that parses and validates, or text that matches a regular expression. A grammar that cannot be used
is rejected at once.
"""

import json
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from time import monotonic
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support.checkpoints.small_checkpoints import TOKENIZER_SIZE, make_tiny_checkpoint
from support.json_schema_checker import is_valid_for_schema
from support.servers.weft_process import WeftProcess, iter_stream_events, run_weft_process
from tokenizers import Tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Item = TypeVar("Item")
Result = TypeVar("Result")

PROMPT = "Once upon a time"
SHORT_STRING_SCHEMA = {"type": "string", "maxLength": 4}
SCHEMAS: dict[str, Any] = {
    "types": {"type": "object", "required": ["a", "b", "c", "d"], "additionalProperties": False, "properties": {
        "a": {"type": "integer", "minimum": -5, "maximum": 500}, "b": {"type": "boolean"}, "c": {"type": "null"},
        "d": SHORT_STRING_SCHEMA}},
    "not required": {"type": "object", "additionalProperties": False, "properties": {
        "a": {"const": "x"}, "b": {"enum": [1, "two", None, [3]]}}},
    "nested": {"type": "object", "required": ["a"], "additionalProperties": False, "properties": {
        "a": {"type": "object", "required": ["b"], "additionalProperties": False, "properties": {
            "b": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3}}}}},
    "alternatives": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"anyOf": [
        {"type": "boolean"}, {"type": "integer", "minimum": 10, "maximum": 12}]}},
    "told apart": {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "discriminator": {"propertyName": "kind"},
                   "$defs": {name: {"type": "object", "required": ["kind", "size"], "additionalProperties": False,
                                    "properties": {"kind": {"const": name, "title": "Kind"},
                                                   "size": SHORT_STRING_SCHEMA}}
                             for name in "AB"}},
    "patterns": {"type": "object", "required": ["when"], "additionalProperties": False, "properties": {
        "when": {"type": "string", "pattern": r"^\d{4}-[01]\d$"}}},
    "together": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["x"]}], "items": False, "minItems": 2},
}
REGEXES = [r"(loom|weft|warp)", r"\d{3}-\d{4}", r"[A-Z][a-z]{0,6}( [A-Z][a-z]{0,6}){1,2}",
           r"(?:[01]?\d|2[0-3]):[0-5]\d", r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
           r"^Übung( [čě]{1,3})?$"]


def make_nested_one_of(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"oneOf": [schema, {"type": "string"}]}
    return schema


HOSTILE_GRAMMARS: dict[str, Any] = {
    "deep oneOf": {"type": "json", "value": make_nested_one_of(60)},
    "deeper oneOf": {"type": "json", "value": '{"oneOf":[' * 5_000 + "{}" + "]}" * 5_000},
    "oneOf that overlap": {"type": "json", "value": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
    "endless repetition": {"type": "regex", "value": "a{0,1000000000}"},
    "endless repetition in a schema": {"type": "json", "value": {"properties": {"a": {"pattern": "a{0,1000000000}"}}}},
    "a megabyte": {"type": "regex", "value": "a" * 1_000_000},
    "ten megabytes": {"type": "json", "value": {"description": "a" * 10_000_000}},
    "look-around": {"type": "regex", "value": "(?=a)b"},
    "what would be ignored": {"type": "json", "value": {"type": "array", "uniqueItems": True}},
    "switches of the compiler": {"type": "json", "value": {"x-guidance": {"lenient": True}, "not": {}}},
    "many constraints at once": {"type": "json", "value": {"allOf": [
        {"oneOf": [{"properties": {f"a{i}": {"const": j}}, "required": [f"a{i}"]} for j in range(6)]}
        for i in range(12)]}},
}


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    folder = tmp_path_factory.mktemp("grammars")
    model = folder / "model"
    shutil.copytree(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), model)
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    with run_weft_process(folder, str(model), "--max-batch-total-tokens", "65536", "--threads", "1") as server:
        yield server


def post_json(weft: WeftProcess, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = Request(weft.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urlopen(request) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def generate_text(weft: WeftProcess, grammar: Any, seed: int) -> str:
    parameters = {"max_new_tokens": 400, "do_sample": True, "seed": seed, "details": True, "grammar": grammar}
    status, answer = post_json(weft, "/generate", {"inputs": PROMPT, "parameters": parameters})
    assert status == 200, answer
    assert answer["details"]["finish_reason"] == "eos_token"
    return str(answer["generated_text"])


def map_concurrently(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    with ThreadPoolExecutor(8) as clients:
        return [*clients.map(function, items)]


def test_json_grammar_answers_parse_and_validate(weft: WeftProcess) -> None:
    cases = [(name, seed) for name in SCHEMAS for seed in range(2)]
    texts = map_concurrently(lambda case: generate_text(weft, {"type": "json", "value": SCHEMAS[case[0]]}, case[1]),
                             cases)
    for (name, _), text in zip(cases, texts, strict=True):
        assert is_valid_for_schema(SCHEMAS[name], json.loads(text)), (name, text)
    assert len(set(texts)) > len(SCHEMAS)


def test_regex_grammar_answers_match_in_full(weft: WeftProcess) -> None:
    cases = [(pattern, seed) for pattern in REGEXES for seed in range(2)]
    texts = map_concurrently(lambda case: generate_text(weft, {"type": "regex", "value": case[0]}, case[1]), cases)
    assert [text for (pattern, _), text in zip(cases, texts, strict=True) if not re.fullmatch(pattern, text)] == []


def test_grammar_gives_the_same_text_in_every_spelling_and_dialect(weft: WeftProcess) -> None:
    schema = SCHEMAS["types"]
    spellings = [{"type": "json", "value": schema}, {"type": "json_object", "value": json.dumps(schema)},
                 {"type": "json_schema", "value": {"name": "it", "schema": schema}}]
    assert len(set(map_concurrently(lambda grammar: generate_text(weft, grammar, 7), spellings))) == 1
    chat = {"messages": [{"role": "user", "content": PROMPT}], "seed": 7, "max_tokens": 400}
    formats = [{"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}, *spellings,
               {"type": "json_object", "schema": schema}]
    choices = map_concurrently(lambda form: request_chat_choice(weft, chat | {"response_format": form}), formats)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    [text] = {choice["message"]["content"] for choice in choices}
    assert is_valid_for_schema(schema, json.loads(text))


def request_chat_choice(weft: WeftProcess, chat_body: dict[str, Any]) -> dict[str, Any]:
    """Return the only choice of a chat's answer."""
    status, answer = post_json(weft, "/v1/chat/completions", chat_body)
    assert status == 200, answer
    [choice] = answer["choices"]
    return dict(choice)


def test_streamed_answers_match_the_grammar(weft: WeftProcess) -> None:
    grammar = {"type": "regex", "value": REGEXES[1]}
    *_, last = events = list(iter_stream_events(weft.post_prompt("/generate_stream", 40, grammar=grammar)))
    assert re.fullmatch(REGEXES[1], last["generated_text"])
    assert "".join(
        event["token"]["text"] for event in events if not event["token"]["special"]) == last["generated_text"]


TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in {
    "paint": {"type": "object", "required": ["colour", "size"], "$defs": {"colour": {"enum": ["red", "blue"]}},
              "properties": {"colour": {"$ref": "#/$defs/colour"},
                             "size": {"type": "integer", "minimum": 0, "maximum": 99}}},
    "stop": None}.items()]


@pytest.mark.parametrize(("choice", "names"), [
    ("required", {"paint", "stop"}), ("paint", {"paint"}),
    ({"type": "function", "function": {"name": "paint"}}, {"paint"}), ("stop", {"stop"})])
def test_required_tool_calls_are_made_with_valid_arguments(weft: WeftProcess, choice: Any, names: set[str]) -> None:
    """Neither the model nor its chat template supports tools."""
    chat_body = {"messages": [{"role": "user", "content": PROMPT}], "tools": TOOLS, "tool_choice": choice,
                 "max_tokens": 400}
    called_names = set()
    for answer in map_concurrently(lambda seed: request_chat_choice(weft, chat_body | {"seed": seed}), range(4)):
        [call] = answer["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert answer["finish_reason"] == "tool_calls"
        schema = {"paint": {**TOOLS[0]["function"]["parameters"], "additionalProperties": False},
                  "stop": {"type": "object", "additionalProperties": False, "properties": {}}}[call["function"]["name"]]
        assert is_valid_for_schema(schema, arguments), arguments
        called_names.add(call["function"]["name"])
    assert called_names <= names


REASONING_TEMPLATE = ("{% if false %}<tool_call>\n{% endif %}"
                      "{% for message in messages %}{{ message.content }}\n{% endfor %}"
                      "<|im_start|>assistant\n{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}")


@pytest.fixture(scope="module")
def reasoning_weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    """Serve a model whose prompt begins the reasoning, unless `enable_thinking` is false, with a token that ends it."""
    folder = tmp_path_factory.mktemp("reasoning")
    model = folder / "model"
    shutil.copytree(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama"), model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<think>", "</think>"])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(REASONING_TEMPLATE)
    with run_weft_process(folder, str(model), "--max-batch-total-tokens", "65536", "--threads", "1") as server:
        yield server


def make_reasoning_chat(*, ends: bool, **fields: Any) -> dict[str, Any]:
    """Return a chat whose reasoning ends at once or never, by a bias of the token that ends it."""
    bias = 100 if ends else -100
    return {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 400, "seed": 1,
            "chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {str(TOKENIZER_SIZE + 1): bias}, **fields}


def test_grammar_begins_behind_the_reasoning(reasoning_weft: WeftProcess) -> None:
    schema = SCHEMAS["types"]
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}}
    choice = request_chat_choice(reasoning_weft, make_reasoning_chat(ends=True, **form))
    assert choice["finish_reason"] == "stop"
    assert is_valid_for_schema(schema, json.loads(choice["message"]["content"]))
    choice = request_chat_choice(reasoning_weft, make_reasoning_chat(ends=False, **form))
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert len(choice["message"]["reasoning"]) > 400, "the grammar has no part in it"
    call = {"tools": TOOLS, "tool_choice": "required"}
    message = request_chat_choice(reasoning_weft, make_reasoning_chat(ends=True, **call))["message"]
    assert message["tool_calls"][0]["function"]["name"] in {"paint", "stop"}


def test_answer_is_in_the_format_or_calls(reasoning_weft: WeftProcess) -> None:
    """The model opens calls and answers by chance."""
    kinds = set()
    for pattern in ("<[a-c]>", "a{1,9}|<b>"):
        chat = make_reasoning_chat(ends=True, tools=TOOLS, response_format={"type": "regex", "value": pattern})
        for choice in map_concurrently(lambda request: request_chat_choice(reasoning_weft, request),
                                       [chat | {"seed": seed} for seed in range(6)]):
            message = choice["message"]
            if calls := message.get("tool_calls"):
                assert {call["function"]["name"] for call in calls} <= {"paint", "stop"}
                assert all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)
            else:
                assert re.fullmatch(pattern, message["content"])
            kinds.add(bool(calls))
    assert kinds == {True, False}


@pytest.mark.parametrize("name", HOSTILE_GRAMMARS)
def test_hostile_grammar_is_rejected_fast_without_delaying_other_streams(weft: WeftProcess, name: str) -> None:
    """Steps take milliseconds: one gap of half a second may come from the machine, three in a row come from weft."""
    generate_text(weft, {"type": "regex", "value": "a"}, 1)
    measurements = []
    while not measurements or (len(measurements) < 3 and not is_fast_enough(*measurements[-1])):
        measurements.append(measure_rejection(weft, vary_grammar(HOSTILE_GRAMMARS[name], len(measurements))))
    assert is_fast_enough(*measurements[-1]), measurements


def vary_grammar(grammar: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an equally hostile grammar that was not sent before, since rejections are cached."""
    value, title = grammar["value"], str(number)
    if grammar["type"] == "regex":
        return grammar | {"value": title + value}
    if isinstance(value, str):
        return grammar | {"value": value.replace("{", f'{{"title":"{title}",', 1)}
    return grammar | {"value": {"title": title} | value}


def is_fast_enough(rejection_seconds: float, longest_gap_seconds: float) -> bool:
    return rejection_seconds < 2.0 and longest_gap_seconds < 0.5


def measure_rejection(weft: WeftProcess, grammar: Any) -> tuple[float, float]:
    """Return the time to reject a grammar, and the longest gap between tokens of another stream meanwhile."""
    stream, is_rejected = iter_stream_events(weft.post_prompt("/generate_stream", 1900)), Event()
    assert next(stream)["index"] == 1
    with ThreadPoolExecutor(1) as reader:
        gaps = reader.submit(measure_longest_gap, stream, is_rejected)
        began = monotonic()
        status, answer = post_json(weft, "/generate", {"inputs": PROMPT, "parameters": {"grammar": grammar}})
        rejection_seconds = monotonic() - began
        is_rejected.set()
    assert 400 <= status < 500, answer
    assert len(answer["error"]) < 1000
    return rejection_seconds, gaps.result()


def measure_longest_gap(stream: Generator[dict[str, Any]], is_rejected: Event) -> float:
    """Return the longest gap between tokens, up to 20 tokens after `is_rejected` is set."""
    last, longest, tokens_left = monotonic(), 0.0, 20
    with closing(stream):
        for _ in stream:
            longest, last = max(longest, monotonic() - last), monotonic()
            tokens_left -= is_rejected.is_set()
            if not tokens_left:
                break
    return longest
