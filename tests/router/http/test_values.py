"""Every value in every field of every body: values that fit the OpenAPI document are answered, others are rejected as
client errors. New fields are found through the document."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
from pydantic.json_schema import models_json_schema
from support.openapi_schemas import Described, Put

from benchmarks.bench.load.http import Server  # takes a fraction of the time of other clients
from router.config import RouterConfig
from router.http.docs.catalog import GENERATING, READING, Entry, sections
from router.http.docs.openapi import REFERENCE, document
from router.http.openai.errors import has_api_errors

# Templates need content; this server has no grammars, so other formats are rejected.
GOOD = {"Message": {"role": "user", "content": "x"}, "ChatFormat": {"type": "text"},
        "ResponseFormat": {"type": "Text", "schema": None}, "MergedAdapters": {"ids": ["x"], "weights": [1.0]}}
TOLD = {compat: Described(document(compat)["components"]["schemas"], GOOD) for compat in ("none", "lorax")}
# Texts of values in a body; NaN and the infinities are no standard JSON.
VALUES = (
    "null", "true", "false", "-1", "0", "1", "1.5", "1.0", "0.5", "-2.5", "-0.0", "1e-400", "1e39", "1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "-2147483649", "4294967296", "18446744073709551616", '""', '"x"',
    '"\\u0000"', f'"{"x" * 1025}"', "[]", "[null]", '["x"]', '[""]', "[[]]", "{}", '{"type": "x"}', '{"type": "text"}')
NO_JSON = ('"\\ud800"', f"1{'0' * 5000}", "[" * 2000, "", "'x'", "undefined", "0x10", '"\n"')
LIMITS = {"best_of": 2, "top_n_tokens": 5, "top_logprobs": 5, "truncate": 1599, "dimensions": 16}
READS = {"embeddings": True, "classification": True, "labels": ("O",)}
IN_STREAMS = {"best_of": {None, 1}, "decoder_input_details": {False}}
# LoRAX's stricter limits and other field names.
MANY = dict.fromkeys(("max_new_tokens", "max_tokens", "max_completion_tokens"), 1500)
LORAX_LIMITS = {"best_of": 2, "truncate": 1599, "return_k_alternatives": 5, **MANY}
LORAX_IN_STREAMS = IN_STREAMS | {"logprobs": {None}}
CHAT_IN_STREAMS = {"n": {None, 1}}
WITHIN_THE_STREAM = ('data: {"error":', 'data:{"error":')


def types_of(entry: Entry) -> Described:
    _, schemas = models_json_schema([(body, "validation") for body in entry.bodies], ref_template=REFERENCE)
    return Described(schemas["$defs"], GOOD)


@dataclass(frozen=True)
class Case:
    entry: Entry
    streamed: bool
    compat: str = "none"

    @property
    def generates(self) -> bool:
        return "tokenize" not in self.entry.path

    @cached_property
    def known(self) -> Described:
        """Schemas of the bodies; for routes that generate nothing, only the types of parameters count."""
        return TOLD[self.compat] if self.generates else types_of(self.entry)

    def places(self) -> Iterator[tuple[str, str, Put]]:
        """Yield each field: the body's type, the path to the field, and a function that builds a body with a value."""
        for body in self.entry.bodies:
            for way, put in self.known.places({"$ref": body.__name__}):
                yield body.__name__, way, put

    def status(self, shape: str, way: str, put: Put, text: str) -> int:
        if text in NO_JSON:
            return 400
        value = json.loads(text)
        return 200 if self.known.fits({"$ref": shape}, put(value)) and not self._refuses(shape, way, value) else 422

    def _refuses(self, shape: str, way: str, value: Any) -> bool:
        """Whether a value that fits the schema is rejected: by a setting, or since what it names does not exist."""
        name = way.rpartition(".")[2]
        if way.endswith("messages[].content"):
            return value is None
        if ".tool_choice" in way:
            return bool(value)
        if not self.generates:
            return (name, value) == ("inputs", "")
        if ".merged_adapters" in way or ".parameters.response_format" in way:
            return value is not None or name not in {"merged_adapters", "response_format", "schema"}
        limits, in_streams = self._limits(shape, way)
        if self.streamed and name in in_streams:
            return value not in in_streams[name]
        return (name == "adapter_id" and bool(value)) or (name in limits and (value or 0) > limits[name])

    def _limits(self, shape: str, way: str) -> tuple[dict[str, int], dict[str, set[Any]]]:
        """Return the limits of all answers, and the only values that streams accept."""
        if shape == "LoraxChat":
            return {"n": 2, **MANY}, CHAT_IN_STREAMS
        if self.compat == "lorax":
            return LORAX_LIMITS, LORAX_IN_STREAMS
        return LIMITS, IN_STREAMS if ".parameters" in way else {}


def body_with(put: Put, value: str, **more: Any) -> str:
    mark = "the value that is tried"
    return json.dumps({**more, **put(mark)}).replace(json.dumps(mark), value)


# `/invocations` is left out of STREAMED: it streams through the routes whose bodies it takes.
WHOLE = [Case(entry, streamed=False) for entry in GENERATING if entry.path != "/generate_stream"]
STREAMED = [Case(entry, streamed=True) for entry in GENERATING if entry.streams and entry.path != "/invocations"]
READ = [Case(entry, streamed=False) for entry in READING]
OF_LORAX = [replace(case, entry=entry, compat="lorax") for case in [*WHOLE, *STREAMED]
            for entry in sections("lorax")["Generate"] if entry.path == case.entry.path and entry != case.entry]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*WHOLE, *STREAMED, *OF_LORAX, *READ], ids=lambda case: (
    f"{case.entry.path}{' streamed' * case.streamed} {case.compat}"))
def test_a_value_is_answered_or_refused_as_documented(serve, case) -> None:
    path, more = case.entry.path, {"stream": True} if case.streamed else {}

    async def status_of(server: Server, body: str) -> int:
        """Return the status, or 422 for a stream whose only event is an error."""
        status, answer = await server.whole(server.request("POST", path, "", body.encode("utf-8", "surrogatepass")))
        text = answer.decode()
        if status == 200 and not text.startswith(WITHIN_THE_STREAM):
            return status
        told = json.loads(text.removeprefix("data:"))
        if has_api_errors(path, case.compat):
            assert set(told["error"]) == {"message", "type", "param", "code"}
            assert told["error"]["type"] == "invalid_request_error", told
            assert len(told["error"]["message"]) < 1000
            return status
        assert set(told) == {"error", "error_type"}
        assert told["error_type"] in {"validation", "bad_request", "tool_error", "suffix not supported"}, told
        assert len(told["error"]) < 1000
        return 422 if status == 200 else status

    async def scenario(client, engine):
        server, wrong = Server(str(client.make_url("/"))), []
        for shape, way, put in case.places():
            for text in (*VALUES, *NO_JSON):
                expected = case.status(shape, way, put, text)
                if expected == 422 and has_api_errors(path, case.compat):
                    expected = 400
                status = await status_of(server, body_with(put, text, **more))
                wrong += [(shape, way, text[:40], status, expected)] * (status != expected)
            assert await status_of(server, json.dumps(case.known.sample({"$ref": shape}))) == 200
        server.close()
        assert wrong == []
    serve(scenario, config=RouterConfig(compat=case.compat), **READS)
