"""Every value in every field of every body: values that fit the OpenAPI document are answered, others are rejected as
client errors. New fields are found through the document."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic.json_schema import models_json_schema
from support.openapi_schemas import DocumentSchemas, MakeBody
from support.servers.fake_adapter_store import FakeAdapterStore
from support.servers.scripted_adapters import accept_resource

from benchmarks.bench.load.http import HttpConnectionPool  # takes a fraction of the time of other clients
from router.config import RouterConfig
from router.http.docs import (
    ADAPTER_ROUTES,
    ANTHROPIC_ROUTES,
    BATCHING_STUDY_ROUTES,
    ENGINE_ROUTES,
    GENERATE_ROUTES,
    OLLAMA_ROUTES,
    POOLING_ROUTES,
    RESPONSES_ROUTES,
    ROUTE_SECTIONS,
    SCHEMA_REFERENCE,
    DocumentedRoute,
    build_openapi_document,
    get_route_sections,
)
from router.http.openai.requests import OPENAI_ROLES
from router.http.transport.error_responses import (
    OllamaErrorReply,
    OpenAIErrorReply,
    TgiErrorReply,
    find_error_reply_type,
)

# Templates need content; this server has no grammars, so other formats are rejected.
VALID_EXAMPLES = {"Message": {"role": "user", "content": "x"}, "ChatResponseFormat": {"type": "text"},
                  "ResponseFormat": {"type": "Text", "schema": None},
                  "MergedAdapters": {"ids": ["x"], "weights": [1.0]}, "TextFormat": {"type": "text"},
                  "InputMessage": {"role": "user", "content": "x"}, "OllamaMessage": {"role": "user", "content": "x"},
                  # without them the model is only loaded
                  "OllamaChatRequest": {"model": "x", "messages": [{"role": "user", "content": "x"}]},
                  "OllamaGenerateRequest": {"model": "x", "prompt": "x"},
                  "StudyInferenceRequest": {"prompt": "x", "num_tokens": 1}}
SCHEMAS_BY_COMPAT = {compat: DocumentSchemas(build_openapi_document(compat)["components"]["schemas"], VALID_EXAMPLES)
                     for compat in ("none", "lorax")}
# Texts of values in a body; NaN and the infinities are no standard JSON.
JSON_VALUES = (
    "null", "true", "false", "-1", "0", "1", "1.5", "1.0", "0.5", "-2.5", "-0.0", "1e-400", "1e39", "1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "-2147483649", "4294967296", "18446744073709551616", '""', '"x"',
    '"\\u0000"', f'"{"x" * 1025}"', "[]", "[null]", '["x"]', '[""]', "[[]]", "{}", '{"type": "x"}', '{"type": "text"}')
# Of what this server lacks, the fields that may be null: a null inside of them leaves something of it there.
UNAVAILABLE_FIELDS = {"merged_adapters", "response_format", "schema", "format", "structured_outputs", "guided_json",
                      "guided_regex", "guided_choice", "guided_grammar"}
INVALID_JSON = ('"\\ud800"', f"1{'0' * 5000}", "[" * 2000, "", "'x'", "undefined", "0x10", '"\n"')
NUM_TURNS = 9  # each field of a case gets one value of so many, and the same field of other cases the next ones
MAX_VALUES = {"best_of": 2, "top_n_tokens": 5, "top_logprobs": 20, "logprobs": 20, "n": 32, "truncate": 1599,
              "dimensions": 16}
POOLING_MODEL_FIELDS = {"embeddings": True, "classification": True, "labels": ("O",)}
ALLOWED_IN_STREAMS = {"best_of": {None, 1}, "decoder_input_details": {False}}
# LoRAX's stricter limits and other field names.
MAX_TOKEN_LIMITS = dict.fromkeys(("max_new_tokens", "max_tokens", "max_completion_tokens"), 1500)
LORAX_MAX_VALUES = {"best_of": 2, "truncate": 1599, "return_k_alternatives": 5, **MAX_TOKEN_LIMITS}
LORAX_ALLOWED_IN_STREAMS = ALLOWED_IN_STREAMS | {"logprobs": {None}}
LORAX_CHAT_ALLOWED_IN_STREAMS = {"n": {None, 1}}
# Parts of a content that become its text, of which only that is read.
CONTENT_PARTS = {"TextPart", "InputTextPart", "RefusalPart", "ReasoningPart"}
# LoRAX's errors have its own names on OpenAI's routes, too.
LORAX_NAMES = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "n": "best_of",
               "prompt": "inputs", "merged_adapters": "adapters", "logprobs": "decoder_input_details",
               **dict.fromkeys(("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
                               "response_format")}
STREAM_ERROR_PREFIXES = ('data: {"error":', 'data:{"error":')


def get_body_schemas(entry: DocumentedRoute) -> DocumentSchemas:
    _, schemas = models_json_schema([(body, "validation") for body in entry.body_models], ref_template=SCHEMA_REFERENCE)
    return DocumentSchemas(schemas["$defs"], VALID_EXAMPLES)


@dataclass(frozen=True)
class BodyTestCase:
    entry: DocumentedRoute
    is_streamed: bool
    compat: str = "none"

    @property
    def is_generation_route(self) -> bool:
        return "tokenize" not in self.entry.path

    @cached_property
    def schemas(self) -> DocumentSchemas:
        """Schemas of the bodies; for routes that generate nothing, only the types of parameters count."""
        return SCHEMAS_BY_COMPAT[self.compat] if self.is_generation_route else get_body_schemas(self.entry)

    def iterate_fields(self) -> Iterator[tuple[str, str, MakeBody]]:
        """Yield each field: the body's type, the path to the field, and a function that builds a body with a value."""
        for body in self.entry.body_models:
            for field_path, build_body in self.schemas.iter_fields({"$ref": body.__name__}):
                yield body.__name__, field_path, build_body

    def expected_status(self, body_type: str, field_path: str, build_body: MakeBody, value_text: str) -> int:
        if value_text in INVALID_JSON:
            return 400
        value = json.loads(value_text)
        if not self.schemas.is_valid({"$ref": body_type}, build_body(value)):
            return 422
        is_rejected = (is_rejected_by_ollama_routes(field_path, value) if body_type.startswith("Ollama")
                       else self._is_rejected(body_type, field_path, value))
        return 422 if is_rejected else 200

    def _is_rejected(self, body_type: str, field_path: str, value: Any) -> bool:
        """Whether a value that fits the schema is rejected: by a setting, or since what it names does not exist."""
        name = field_path.rpartition(".")[2]
        if field_path.endswith(("messages[].content", "messages[].role")):  # the template compares with no other roles
            return value is None if name == "content" else (
                self.compat == "none" and self.is_generation_route and value not in OPENAI_ROLES)
        if name in {"continue_final_message", "suffix"} or (
                ".tool_choice" in field_path and not body_type.startswith("Anthropic")):
            return bool(value)  # there are no tools, no tokens of a suffix, and the last message is no answer
        if not self.is_generation_route:
            return name in {"inputs", "prompt"} and value == ""
        if (any(part in field_path for part in (".merged_adapters", ".parameters.response_format",
                                                ".structured_outputs", ".guided_"))
            or (".output_config.format" in field_path and body_type == "AnthropicMessagesRequest")):
            return value is not None or name not in UNAVAILABLE_FIELDS
        limits, in_streams = self._value_limits(body_type, field_path)
        if self.is_streamed and name in in_streams:
            return value not in in_streams[name]
        return (name == "adapter_id" and bool(value)) or (name in limits and (value or 0) > limits[name])

    def _value_limits(self, body_type: str, field_path: str) -> tuple[dict[str, int], dict[str, set[Any]]]:
        """Return the limits of all answers, and the only values that streams accept."""
        if body_type == "LoraxChatRequest":
            return {"n": 2, **MAX_TOKEN_LIMITS}, LORAX_CHAT_ALLOWED_IN_STREAMS
        if self.compat == "lorax":
            return LORAX_MAX_VALUES, LORAX_ALLOWED_IN_STREAMS
        return MAX_VALUES, ALLOWED_IN_STREAMS if ".parameters" in field_path else {}


def is_rejected_by_ollama_routes(field_path: str, value: Any) -> bool:
    """Whether a value is rejected without grammars, and with a template that knows no reasoning."""
    name = field_path.rpartition(".")[2]
    return ((name in {"format", "think", "suffix"} and value not in (None, False, ""))
            or (name == "role" and value not in OPENAI_ROLES)
            or (name in MAX_VALUES and (value or 0) > MAX_VALUES[name]))


PLACEHOLDER = "the value that is tried"


def make_body_json(build_body: MakeBody, value: str, **other_fields: Any) -> str:
    return json.dumps({**other_fields, **build_body(PLACEHOLDER)}).replace(json.dumps(PLACEHOLDER), value)


def without_placeholder(value: Any) -> Any:
    """Return a body without the field that has the placeholder."""
    if isinstance(value, list):
        return [without_placeholder(item) for item in value]
    return ({name: without_placeholder(part) for name, part in value.items() if part != PLACEHOLDER}
            if isinstance(value, dict) else value)


def names_field(reason: str, field_path: str, compat: str) -> bool:
    """Whether a reason names the field, or an object that it is in."""
    names = re.findall(r"\w+", field_path)
    names += [LORAX_NAMES[name] for name in names if compat == "lorax" and name in LORAX_NAMES]
    return any(re.search(rf"\b{name}\b", reason) for name in names)


ALL_GENERATION_ROUTES = (*GENERATE_ROUTES, *RESPONSES_ROUTES, *ANTHROPIC_ROUTES)
# `/invocations` is left out of STREAM_CASES: it streams through the routes whose bodies it takes.
RESPONSE_CASES = [BodyTestCase(entry, is_streamed=False) for entry in ALL_GENERATION_ROUTES
                  if entry.path != "/generate_stream"]
STREAM_CASES = [BodyTestCase(entry, is_streamed=True) for entry in ALL_GENERATION_ROUTES
                if entry.can_stream and entry.path != "/invocations"]
POOLING_CASES = [BodyTestCase(entry, is_streamed=False) for entry in POOLING_ROUTES]
OLLAMA_CASES = [BodyTestCase(entry, is_streamed=is_streamed) for entry in OLLAMA_ROUTES
                if entry.body_models and entry.path != "/api/show" for is_streamed in {False, entry.can_stream}]
LORAX_CASES = [replace(case, entry=entry, compat="lorax") for case in [*RESPONSE_CASES, *STREAM_CASES]
               for entry in get_route_sections("lorax")["Generate"] if entry.path == case.entry.path and entry
               != case.entry]


ALL_CASES = [case for case in (*RESPONSE_CASES, *LORAX_CASES, *POOLING_CASES, *OLLAMA_CASES) if not case.is_streamed]
# Routes whose answers depend on more than the schema of the body: on which adapters and models there are.
STATE_ROUTES = [entry for entry in (*ADAPTER_ROUTES, *ENGINE_ROUTES, *OLLAMA_ROUTES, *BATCHING_STUDY_ROUTES)
                if entry.body_models and (entry not in OLLAMA_ROUTES or entry.path == "/api/show")]

VALUE_CASES = [*RESPONSE_CASES, *STREAM_CASES, *LORAX_CASES, *POOLING_CASES, *OLLAMA_CASES]


@cache
def assign_turns() -> dict[tuple[BodyTestCase, str, str], int]:
    """Return the turn of every field: values are dealt in turns, so that every value meets neighbouring fields, and a
    field of several cases, such as one that is streamed and one that is not, gets more of the values."""
    turns, counts = {}, Counter[tuple[str, str]]()
    for case in VALUE_CASES:
        for number, (body_type, field_path, _) in enumerate(case.iterate_fields()):
            turns[case, body_type, field_path] = number + counts[body_type, field_path]
            counts[body_type, field_path] += 1
    return turns


def deal_values(case: BodyTestCase, body_type: str, field_path: str) -> tuple[str, ...]:
    return (*JSON_VALUES, *INVALID_JSON)[assign_turns()[case, body_type, field_path] % NUM_TURNS::NUM_TURNS]


def test_every_value_is_dealt_to_fields_of_every_case() -> None:
    for case in VALUE_CASES:
        dealt = [deal_values(case, *field) for *field, _ in case.iterate_fields()]
        assert all(dealt)
        assert len(dealt) < NUM_TURNS or {*chain(*dealt)} == {*JSON_VALUES, *INVALID_JSON}


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["dealt", "whole"])
@pytest.mark.parametrize("case", VALUE_CASES,
                         ids=lambda case: f"{case.entry.path}{' streamed' * case.is_streamed} {case.compat}")
def test_every_field_value_is_accepted_or_rejected_as_documented(serve, case, is_whole) -> None:
    """By default values are dealt to the fields; in the long form every field gets all of them."""
    path, reply_type = case.entry.path, find_error_reply_type(case.entry.path, case.compat)
    extra_fields = {"stream": True} if case.is_streamed else {"stream": False} if case in OLLAMA_CASES else {}

    async def post_and_get_status(server: HttpConnectionPool, body: str) -> tuple[int, str]:
        """Return the status, or 422 for a stream whose only event is an error, and the error."""
        status, answer = await server.fetch(server.build_request("POST", path, "",
                                                                 body.encode("utf-8", "surrogatepass")))
        text = answer.decode()
        if status == 200 and not text.startswith(STREAM_ERROR_PREFIXES):
            return status, ""
        response = json.loads(text.removeprefix("data:"))
        if reply_type is OllamaErrorReply:
            assert [*response] == ["error"]
            assert len(response["error"]) < 1000
            return status, response["error"]
        if reply_type is not TgiErrorReply:
            assert set(response["error"]) == {"message", "type"} | (
                {"param", "code"} if reply_type is OpenAIErrorReply else set())
            assert response["error"]["type"] == "invalid_request_error", response
            assert len(response["error"]["message"]) < 1000
            return status, f"{response['error']['message']} {response['error'].get('param')}"
        assert set(response) == {"error", "error_type"}
        assert response["error_type"] in {"validation", "bad_request", "tool_error", "suffix not supported"}, response
        assert len(response["error"]) < 1000
        return 422 if status == 200 else status, response["error"]

    async def scenario(client, engine):
        server, mismatches = HttpConnectionPool(str(client.make_url("/"))), []
        for body_type, field_path, build_body in case.iterate_fields():
            for text in (*JSON_VALUES, *INVALID_JSON) if is_whole else deal_values(case, body_type, field_path):
                expected = case.expected_status(body_type, field_path, build_body, text)
                if expected == 422 and reply_type is not TgiErrorReply:
                    expected = 400
                status, reason = await post_and_get_status(server, make_body_json(build_body, text, **extra_fields))
                is_absent = text == "null" and "is missing" in reason  # null decides on a body of another kind
                is_reported = (status == 200 or text in INVALID_JSON or is_absent
                               or names_field(reason, field_path, case.compat))
                if (status, is_reported) != (expected, True):
                    mismatches.append((body_type, field_path, text[:40], status, expected, reason))
            assert await post_and_get_status(server, json.dumps(case.schemas.make_sample({"$ref": body_type}))) == (
                200, "")
        server.close()
        assert mismatches == []
    serve(scenario, config=RouterConfig(compat=case.compat), **POOLING_MODEL_FIELDS)


def test_every_route_with_a_body_is_tried():
    tried = {case.entry.path for case in ALL_CASES} | {case.entry.path for case in STREAM_CASES}
    sections = [*ROUTE_SECTIONS.values(), BATCHING_STUDY_ROUTES]
    assert tried | {entry.path for entry in STATE_ROUTES} == {
        entry.path for section in sections for entry in section if entry.body_models}


@pytest.mark.parametrize("entry", STATE_ROUTES, ids=lambda entry: entry.path)
def test_invalid_values_are_refused_whatever_is_served(serve, entry):
    """The routes of adapters, of the engine, of the study and `/api/show`: a value that breaks the schema is refused,
    with a reason that names the field; any other is not a fault of the server."""
    schemas = get_body_schemas(entry)
    documented = {200, 400, 404, 422, 424, *map(int, entry.extra_error_statuses)}

    async def scenario(client, engine):
        engine.adapter_grammar_controller = SimpleNamespace(load=accept_resource)
        server, [body_model] = HttpConnectionPool(str(client.make_url("/"))), entry.body_models
        for field_path, build_body in schemas.iter_fields({"$ref": body_model.__name__}):
            for text in JSON_VALUES:
                body = make_body_json(build_body, text)
                status, answer = await server.fetch(server.build_request("POST", entry.path, "", body.encode()))
                assert status in documented, (body, answer)
                if not schemas.is_valid({"$ref": body_model.__name__}, build_body(json.loads(text))):
                    assert status in {400, 404, 422}, (body, answer)
                    assert names_field(answer.decode(), field_path, "none"), (body, answer)
        server.close()
    serve(scenario, store=FakeAdapterStore(), config=RouterConfig(dialect="batching"))


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case.entry.path} {case.compat}")
def test_fields_that_are_absent_or_unknown(serve, case):
    """A body without one of its fields is answered, or refused with a reason that names the field; an unknown field,
    also within objects, is named in `x-ignored-fields` where it is ignored. Tools reach the template as they are."""
    async def post(client, body):
        answer = await client.post(case.entry.path, json={"stream": False} | body if case in OLLAMA_CASES else body)
        return answer.status, await answer.text(), answer.headers.get("x-ignored-fields", "")

    async def scenario(client, _):
        for body_type, field_path, build_body in case.iterate_fields():
            body = without_placeholder(build_body(PLACEHOLDER))
            is_rejected = not case.schemas.is_valid({"$ref": body_type}, body)
            status, text, _ = await post(client, body)
            if is_rejected:
                assert status in {400, 422}, (field_path, body, text)
                assert names_field(text, field_path, case.compat) or "is missing" in text, (field_path, body, text)
            else:
                assert status == 200 or names_field(text, field_path, case.compat), (field_path, body, text)
        for body_model in case.entry.body_models:
            for path, schema, make_body in case.schemas.iter_objects({"$ref": body_model.__name__}):
                body = case.schemas.make_field_body(schema, "unknown_field", make_body)(PLACEHOLDER)
                known_status, *_ = await post(client, without_placeholder(body))
                status, text, ignored = await post(client, body)
                assert status == known_status, (path, body, text)
                is_passed_on = schema.get("additionalProperties") is True or (
                    schema.get("title", "TextPart") in CONTENT_PARTS)
                if status == 200 and not is_passed_on:
                    assert "unknown_field" in ignored, (path, body, ignored)
    serve(scenario, config=RouterConfig(compat=case.compat), **POOLING_MODEL_FIELDS)
