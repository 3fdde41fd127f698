"""Every value that a field of any body may not have is told as a fault of the client, and disturbs nobody."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from router.http.catalog import GENERATING
from router.http.openapi import document

SCHEMAS = document()["components"]["schemas"]
GOOD: dict[str, Any] = {
    "/": {"inputs": "x"}, "/generate": {"inputs": "x"}, "/generate_stream": {"inputs": "x"},
    "/tokenize": {"inputs": "x"}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/chat_tokenize": {"messages": [{"role": "user", "content": "x"}]}, "/v1/completions": {"prompt": "x"},
    "/invocations": {"inputs": "x"}, "/vertex": {"instances": [{"inputs": "x"}]}}
# As they stand in a body: not all are JSON.
VALUES = (
    "null", "true", "-1", "0", "1", "1.5", "-0.0", "1e-400", "1e400", "NaN", "Infinity", "-Infinity", "2147483648",
    "4294967296", "18446744073709551616", f"1{'0' * 5000}", '""', '"x"', '"\\ud800"', '"\\u0000"', "[]", "[null]",
    '["x"]', "[[]]", "{}", '{"type": "x"}', "[" * 2000, "")


def fields(schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The ways to every field of a body, also of objects in it."""
    for name, about in schema.get("properties", {}).items():
        yield (name,)
        kinds = [about, *about.get("anyOf", ()), about.get("items", {})]
        for reference in [kind["$ref"] for kind in kinds if "$ref" in kind]:
            yield from ((name, *rest) for rest in fields(SCHEMAS[reference.rpartition("/")[2]]))


def body_with(good: dict[str, Any], way: tuple[str, ...], value: str) -> str:
    """The good body, but for one field."""
    mark = "the value that is tried"
    place: Any = (body := json.loads(json.dumps(good)))
    for name in way[:-1]:
        inner = place.setdefault(name, {})
        place = inner[0] if isinstance(inner, list) and inner else inner
    if isinstance(place, dict):
        place[way[-1]] = mark
    return json.dumps(body).replace(json.dumps(mark), value)


@pytest.mark.slow
@pytest.mark.parametrize("entry", GENERATING, ids=[entry.path for entry in GENERATING])
def test_no_value_of_any_field_is_a_fault_of_ours(serve, entry) -> None:
    good, headers = GOOD[entry.path], {"Content-Type": "application/json"}
    ways = list(fields(SCHEMAS[entry.body.__name__]))
    assert len(ways) >= 1

    async def scenario(client, engine):
        for way in ways:
            for value in VALUES:
                body = body_with(good, way, value)
                answer = await client.post(entry.path, data=body.encode("utf-8", "surrogatepass"), headers=headers)
                text = await answer.text()
                assert answer.status in {200, 400, 422}, (way, value[:40], answer.status, text)
                if answer.status != 200:
                    told = json.loads(text)
                    assert set(told) == {"error", "error_type"}, (way, value[:40])
                    assert len(told["error"]) < 1000
                assert "Internal server error" not in text, (way, value[:40])
        assert (await client.post(entry.path, json=good)).status == 200
    serve(scenario)
