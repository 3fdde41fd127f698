"""Fields of the request types of clients and of vLLM: each is honoured, ignored and reported, or refused by its name.
tests/clients/test_request_fields.py compares with the types of official clients."""

import json
from typing import Any

import pytest
from support.request_fields import BODY_MODELS, VLLM_FIELDS, find_faults, list_treatments

from router.config import RouterConfig
from router.http.openai.request_tools import MAX_FUNCTION_NAME_CHARACTERS

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]}, "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"}, "/v1/embeddings": {"input": "x"},
    "/v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/api/chat": {"model": "x", "messages": [{"role": "user", "content": "x"}], "stream": False},
    "/api/generate": {"model": "x", "prompt": "x", "stream": False}, "/api/embed": {"model": "x", "input": "x"},
    "/api/embeddings": {"model": "x", "prompt": "x"}}
NO_HARMLESS_VALUE = "no value that is accepted"


def test_each_field_of_vllm_has_one_treatment():
    assert find_faults({body: names.split() for body, names in VLLM_FIELDS.items()}) == {}


def test_each_listed_field_has_one_treatment():
    assert find_faults({body: [*model.model_fields, *model.ignored_fields, *model.refused_fields]
                        for body, model in BODY_MODELS.items()}) == {}


def test_fields_that_are_read_only_to_be_refused_count_as_refused():
    for body, name, treatment in (
            ("/v1/responses", "background", "refused"), ("/v1/completions", "suffix", "honoured"),
            ("/v1/messages", "container", "refused"), ("/api/generate", "images", "refused"),
            ("/v1/responses", "store", "ignored"), ("/v1/completions structured_outputs", "json", "honoured")):
        assert list_treatments(BODY_MODELS[body], name) == [treatment]
    assert list_treatments(BODY_MODELS["/v1/completions"], "nothing") == []


@pytest.mark.parametrize("path", BODIES)
def test_refused_fields_are_named_and_ignored_fields_are_reported(serve, path):
    model = BODY_MODELS[path]

    async def scenario(client, _):
        for name, accepted in model.refused_fields.items():
            for value in (NO_HARMLESS_VALUE, *accepted):
                answer = await client.post(path, json=BODIES[path] | {name: value})
                if value == NO_HARMLESS_VALUE:
                    assert (answer.status, f"`{name}` is given, but" in await answer.text()) == (400, True), name
                    assert "x-ignored-fields" not in answer.headers, name
                else:
                    assert (answer.status, answer.headers["x-ignored-fields"]) == (200, name), await answer.text()
        for name in model.ignored_fields - model.model_fields.keys():
            answer = await client.post(path, json=BODIES[path] | {name: {"x": 1}})
            assert (answer.status, answer.headers["x-ignored-fields"]) == (200, name)
    serve(scenario, embeddings=True)


def test_refused_field_is_not_called_ignored(post):
    """Regression: the error of a refused field had it in `x-ignored-fields`, too. Where another server is imitated,
    such fields are ignored."""
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = BODIES[path] | {"ebnf": "x", "structured_outputs": {"regex": "a", "structural_tag": "x"}, "user": "me"}
        status, headers, _ = post(path, **body)
        assert (status, headers["x-ignored-fields"]) == (400, "user")
    body = BODIES["/v1/chat/completions"] | {"ebnf": "x", "user": "me"}
    ignored = "user, instances.0.user, instances.0.ebnf"
    for config in (RouterConfig(compat="tgi"), RouterConfig(compat="lorax")):
        _, headers, _ = post("/v1/chat/completions", **body, config=config)
        assert headers["x-ignored-fields"] == "user, ebnf"
    _, headers, _ = post("/vertex", instances=[body], user="me", config=RouterConfig(compat="tgi"))
    assert headers["x-ignored-fields"] == ignored


def test_options_of_structured_outputs_are_refused_or_reported(post):
    body, constraint = BODIES["/v1/completions"], {"json": {"type": "object"}}
    for name, value in {"whitespace_pattern": " ", "structural_tag": "{}"}.items():
        _, _, text = post("/v1/completions", **body, structured_outputs=constraint | {name: value})
        assert json.loads(text)["error"]["message"] == (
            f"`structured_outputs.{name}` is given, but this server does not support it; leave it out")
    _, headers, text = post("/v1/completions", **body, structured_outputs=constraint | {"disable_fallback": True})
    assert headers["x-ignored-fields"] == "structured_outputs.disable_fallback"
    assert "served without grammars" in text


def test_document_lists_ignored_fields(serve):
    async def scenario(client, _):
        answer = await client.get("/api-doc/openapi.json")
        schemas = (await answer.json())["components"]["schemas"]
        assert schemas["ThinkingConfig"]["description"].endswith(" Ignored: budget_tokens.")
        assert "verbosity" in schemas["ChatRequest"]["description"]
    serve(scenario)


@pytest.mark.parametrize(("path", "place", "make_tool"), [
    *((path, "tools.0.function.name", lambda name: {"type": "function", "function": {"name": name}})
      for path in ("/v1/chat/completions", "/api/chat")),
    ("/v1/responses", "tools.0.name", lambda name: {"type": "function", "name": name}),
    *((path, "tools.0.name", lambda name: {"name": name, "input_schema": {}})
      for path in ("/v1/messages", "/v1/messages/count_tokens"))])
def test_names_of_functions_are_limited(serve, path, place, make_tool):
    """Regression: a call of a function with a name of megabytes was parsed from its beginning after each token."""
    async def scenario(client, _):
        for length in (MAX_FUNCTION_NAME_CHARACTERS, MAX_FUNCTION_NAME_CHARACTERS + 1):
            answer = await client.post(path, json=BODIES[path] | {"tools": [make_tool("n" * length)]})
            is_refused = f"`{place}` must have at most 256 characters, got {length}" in await answer.text()
            assert is_refused is (length > MAX_FUNCTION_NAME_CHARACTERS), await answer.text()
    serve(scenario)
