"""Every value in every field of every body: values that fit the OpenAPI document are answered, others are rejected as
client errors. New fields are found through the document."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from pydantic.json_schema import models_json_schema
from support.openapi_schemas import DocumentSchemas, MakeBody

from benchmarks.bench.load.http import HttpConnectionPool  # takes a fraction of the time of other clients
from router.config import RouterConfig
from router.http.docs import (
    ANTHROPIC_ROUTES,
    GENERATE_ROUTES,
    OLLAMA_ROUTES,
    POOLING_ROUTES,
    RESPONSES_ROUTES,
    SCHEMA_REFERENCE,
    DocumentedRoute,
    build_openapi_document,
    get_route_sections,
)
from router.http.transport.errors import OllamaErrorReply, OpenAIErrorReply, TgiErrorReply, find_error_reply_type

# Templates need content; this server has no grammars, so other formats are rejected.
VALID_EXAMPLES = {"Message": {"role": "user", "content": "x"}, "ChatResponseFormat": {"type": "text"},
                  "ResponseFormat": {"type": "Text", "schema": None},
                  "MergedAdapters": {"ids": ["x"], "weights": [1.0]}, "TextFormat": {"type": "text"},
                  "InputMessage": {"role": "user", "content": "x"},
                  # without them the model is only loaded
                  "OllamaChatRequest": {"model": "x", "messages": [{"role": "user", "content": "x"}]},
                  "OllamaGenerateRequest": {"model": "x", "prompt": "x"}}
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
MAX_VALUES = {"best_of": 2, "top_n_tokens": 5, "top_logprobs": 20, "logprobs": 20, "n": 32, "truncate": 1599,
              "dimensions": 16}
POOLING_MODEL_FIELDS = {"embeddings": True, "classification": True, "labels": ("O",)}
ALLOWED_IN_STREAMS = {"best_of": {None, 1}, "decoder_input_details": {False}}
# LoRAX's stricter limits and other field names.
MAX_TOKEN_LIMITS = dict.fromkeys(("max_new_tokens", "max_tokens", "max_completion_tokens"), 1500)
LORAX_MAX_VALUES = {"best_of": 2, "truncate": 1599, "return_k_alternatives": 5, **MAX_TOKEN_LIMITS}
LORAX_ALLOWED_IN_STREAMS = ALLOWED_IN_STREAMS | {"logprobs": {None}}
LORAX_CHAT_ALLOWED_IN_STREAMS = {"n": {None, 1}}
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
        if field_path.endswith("messages[].content"):
            return value is None
        if name == "continue_final_message" or (".tool_choice" in field_path and not body_type.startswith("Anthropic")):
            return bool(value)  # there are no tools, and the last message is no answer
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
    return ((name in {"format", "think"} and value not in (None, False, ""))
            or (name in MAX_VALUES and (value or 0) > MAX_VALUES[name]))


def make_body_json(build_body: MakeBody, value: str, **other_fields: Any) -> str:
    placeholder = "the value that is tried"
    return json.dumps({**other_fields, **build_body(placeholder)}).replace(json.dumps(placeholder), value)


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


@pytest.mark.slow
@pytest.mark.parametrize("case", [*RESPONSE_CASES, *STREAM_CASES, *LORAX_CASES, *POOLING_CASES, *OLLAMA_CASES],
                         ids=lambda case: f"{case.entry.path}{' streamed' * case.is_streamed} {case.compat}")
def test_every_field_value_is_accepted_or_rejected_as_documented(serve, case) -> None:
    path, reply_type = case.entry.path, find_error_reply_type(case.entry.path, case.compat)
    extra_fields = {"stream": True} if case.is_streamed else {"stream": False} if case in OLLAMA_CASES else {}

    async def post_and_get_status(server: HttpConnectionPool, body: str) -> int:
        """Return the status, or 422 for a stream whose only event is an error."""
        status, answer = await server.fetch(server.build_request("POST", path, "",
                                                                 body.encode("utf-8", "surrogatepass")))
        text = answer.decode()
        if status == 200 and not text.startswith(STREAM_ERROR_PREFIXES):
            return status
        response = json.loads(text.removeprefix("data:"))
        if reply_type is OllamaErrorReply:
            assert [*response] == ["error"]
            assert len(response["error"]) < 1000
            return status
        if reply_type is not TgiErrorReply:
            assert set(response["error"]) == {"message", "type"} | (
                {"param", "code"} if reply_type is OpenAIErrorReply else set())
            assert response["error"]["type"] == "invalid_request_error", response
            assert len(response["error"]["message"]) < 1000
            return status
        assert set(response) == {"error", "error_type"}
        assert response["error_type"] in {"validation", "bad_request", "tool_error", "suffix not supported"}, response
        assert len(response["error"]) < 1000
        return 422 if status == 200 else status

    async def scenario(client, engine):
        server, mismatches = HttpConnectionPool(str(client.make_url("/"))), []
        for body_type, field_path, build_body in case.iterate_fields():
            for text in (*JSON_VALUES, *INVALID_JSON):
                expected = case.expected_status(body_type, field_path, build_body, text)
                if expected == 422 and reply_type is not TgiErrorReply:
                    expected = 400
                status = await post_and_get_status(server, make_body_json(build_body, text, **extra_fields))
                mismatches += [(body_type, field_path, text[:40], status, expected)] * (status != expected)
            assert await post_and_get_status(server, json.dumps(case.schemas.make_sample({"$ref": body_type}))) == 200
        server.close()
        assert mismatches == []
    serve(scenario, config=RouterConfig(compat=case.compat), **POOLING_MODEL_FIELDS)
