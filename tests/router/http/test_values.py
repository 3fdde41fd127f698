"""Every value of every field of every body: what fits the OpenAPI document is answered, what does not is told as a
fault of the client, and disturbs nobody. A field that is new is found there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from described import Described, Put
from pydantic.json_schema import models_json_schema

from router.http.catalog import GENERATING, Entry
from router.http.openapi import REFERENCE, document

# Templates need something to say; a grammar of any other kind is not served here.
GOOD = {"Message": {"role": "user", "content": "x"}}
TOLD = Described(document()["components"]["schemas"], GOOD)
HEADERS = {"Content-Type": "application/json"}
# Values as they stand in a body: not all are JSON.
VALUES = (
    "null", "true", "false", "-1", "0", "1", "1.5", "1.0", "0.5", "-2.5", "-0.0", "1e-400", "1e39", "1e400", "NaN",
    "Infinity", "-Infinity", "2147483648", "-2147483649", "4294967296", "18446744073709551616", '""', '"x"',
    '"\\u0000"', f'"{"x" * 1025}"', "[]", "[null]", '["x"]', '[""]', "[[]]", "{}", '{"type": "x"}', '{"type": "text"}')
NO_JSON = ('"\\ud800"', f"1{'0' * 5000}", "[" * 2000, "", "'x'", "undefined", "0x10", '"\n"')
LIMITS = {"best_of": 2, "top_n_tokens": 5, "top_logprobs": 5, "truncate": 1599}
IN_STREAMS = {"best_of": {None, 1}, "decoder_input_details": {False}}
WITHIN_THE_STREAM = 'data: {"error":'


def types_of(entry: Entry) -> Described:
    _, schemas = models_json_schema([(body, "validation") for body in entry.bodies], ref_template=REFERENCE)
    return Described(schemas["$defs"], GOOD)


@dataclass(frozen=True)
class Case:
    entry: Entry
    streamed: bool

    @property
    def generates(self) -> bool:
        return "tokenize" not in self.entry.path

    @cached_property
    def known(self) -> Described:
        """Where nothing is generated, parameters only need to have their types."""
        return TOLD if self.generates else types_of(self.entry)

    def places(self) -> Iterator[tuple[str, str, Put]]:
        """The type of a body, the way to a field of it, and how a body is made that has a value there."""
        for body in self.entry.bodies:
            for way, put in self.known.places({"$ref": body.__name__}):
                yield body.__name__, way, put

    def status(self, shape: str, way: str, put: Put, text: str) -> int:
        if text in NO_JSON:
            return 400
        value = json.loads(text)
        return 200 if self.known.fits({"$ref": shape}, put(value)) and not self._refuses(way, value) else 422

    def _refuses(self, way: str, value: Any) -> bool:
        """What fits, all the same: by a setting, or since nothing of this name is there."""
        name = way.rpartition(".")[2]
        if way.endswith("messages[].content"):
            return value is None
        if ".tool_choice" in way:
            return bool(value)
        if not self.generates:
            return (name, value) == ("inputs", "")
        if self.streamed and ".parameters" in way and name in IN_STREAMS:
            return value not in IN_STREAMS[name]
        return (name == "adapter_id" and bool(value)) or (name in LIMITS and (value or 0) > LIMITS[name])


def body_with(put: Put, value: str, **more: Any) -> str:
    mark = "the value that is tried"
    return json.dumps({**more, **put(mark)}).replace(json.dumps(mark), value)


# What `/invocations` streams is streamed by the routes whose bodies it takes.
WHOLE = [Case(entry, streamed=False) for entry in GENERATING if entry.path != "/generate_stream"]
STREAMED = [Case(entry, streamed=True) for entry in GENERATING if entry.streams and entry.path != "/invocations"]


@pytest.mark.slow
@pytest.mark.parametrize("case", [*WHOLE, *STREAMED], ids=lambda case: case.entry.path + " streamed" * case.streamed)
def test_a_value_is_answered_or_refused_as_documented(serve, case) -> None:
    path, more = case.entry.path, {"stream": True} if case.streamed else {}

    async def status_of(client, body: str) -> int:
        """422 also for what a stream tells as its only event."""
        async with client.post(path, data=body.encode("utf-8", "surrogatepass"), headers=HEADERS) as answer:
            text, status = await answer.text(), answer.status
        if status == 200 and not text.startswith(WITHIN_THE_STREAM):
            return status
        told = json.loads(text.removeprefix("data: "))
        assert set(told) == {"error", "error_type"}
        assert told["error_type"] in {"validation", "bad_request", "tool_error", "suffix not supported"}, told
        assert len(told["error"]) < 1000
        return 422 if status == 200 else status

    async def scenario(client, engine):
        wrong = []
        for shape, way, put in case.places():
            for text in (*VALUES, *NO_JSON):
                expected = case.status(shape, way, put, text)
                status = await status_of(client, body_with(put, text, **more))
                wrong += [(shape, way, text[:40], status, expected)] * (status != expected)
            assert await status_of(client, json.dumps(case.known.sample({"$ref": shape}))) == 200
        assert wrong == []
    serve(scenario)
