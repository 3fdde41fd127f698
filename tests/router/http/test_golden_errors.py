"""Byte-exact errors (status, type and text) and response headers, as clients of text-generation-inference read them;
below /v1 as clients of OpenAI do, unless --compat tgi is set."""

import asyncio
import json
import re
from importlib.metadata import version

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import Keys
from router.config import RouterConfig
from router.errors import GenerationFailed, NotReady, Overloaded, TimedOut
from router.http.app import create_door
from router.http.routes.probes import Probes
from router.http.transport.generate import About
from router.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hi"}]
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
SHAPE = "Failed to deserialize the JSON body into the target type: "
JSON = {"Content-Type": "application/json"}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}]}]
SERVED = "must be a string or a list of parts of type `text`; images and other parts are not served"
FORMAT = {"type": "json_object"}


def error(text: str, error_type: str) -> str:
    return json.dumps({"error": text, "error_type": error_type}, separators=(",", ":"))


def api_error(message: str, param: str | None = None, code: str | None = None,
              kind: str = "invalid_request_error") -> str:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}},
                      separators=(",", ":"))


# Requests with the expected errors (below /v1 with --compat tgi); `*` matches any message of the JSON parser.
ASKED = {
    "no JSON": ("/generate", "{", 400, error("Failed to parse the request body as JSON: *", "bad_request")),
    "a field that is missing": ("/generate", {}, 422, error(f"{SHAPE}`inputs`: Field required", "validation")),
    "a field of another type": (
        "/generate", {"inputs": 5}, 422, error(f"{SHAPE}`inputs`: Input should be a valid string", "validation")),
    "null where it is no value": (
        "/generate", {"inputs": "x", "parameters": {"do_sample": None}}, 422,
        error(f"{SHAPE}`parameters.do_sample`: Input should be a valid boolean", "validation")),
    "several texts": ("/generate", {"inputs": ["x"]}, 422,
                      error(f"{SHAPE}`inputs`: Input should be a valid string", "validation")),
    "another shape in a stream": (
        "/generate_stream", {}, 422, error(f"{SHAPE}`inputs`: Field required", "validation")),
    "no text": ("/generate", {"inputs": ""}, 422,
                error("Input validation error: `inputs` must not be an empty string", "validation")),
    "a rule": ("/generate", {"inputs": "x", "parameters": {"temperature": 0}}, 422,
               error("Input validation error: `temperature` must be above 0, got 0.0", "validation")),
    "a rule in a stream": (
        "/generate_stream", {"inputs": "x", "parameters": {"top_n_tokens": 6}}, 200,
        "data: " + error("Input validation error: `top_n_tokens` must be at most 5 (--max-top-n-tokens), got 6",
                         "validation") + "\n\n"),
    "a rule for chats": (CHAT, {"messages": HELLO, "max_tokens": 0}, 422,
                         error("Input validation error: `max_tokens` must be at least 1, got 0", "validation")),
    "a rule for streamed chats": (
        CHAT, {"messages": HELLO, "max_tokens": 0, "stream": True}, 422,
        error("Input validation error: `max_tokens` must be at least 1, got 0", "validation")),
    "an image": (CHAT, {"messages": IMAGE}, 422, error(f"{SHAPE}`messages.0.content`: {SERVED}", "validation")),
    "a grammar and tools": (CHAT, {"messages": HELLO, "tools": [], "response_format": FORMAT}, 422,
                            error("Tool error: Grammar and tools are mutually exclusive", "tool_error")),
    "a tool that is not there": (
        CHAT, {"messages": HELLO, "tool_choice": "paint"}, 422,
        error("Tool error: `tool_choice` must be `auto`, `none`, `required` or one of the tools (there are none), got "
              "paint", "tool_error")),
    "a suffix": (TEXTS, {"prompt": "x", "suffix": "y"}, 422, error(
        "Input validation error: `suffix` is given, but text is only generated at the end of a prompt; leave it out",
        "suffix not supported")),
    "too many prompts": (TEXTS, {"prompt": ["x"] * 5}, 422, error(
        "Input validation error: `prompt` must hold at most 4 texts (--max-client-batch-size), got 5",
        "batch size exceeded")),
    "too many instances": ("/vertex", {"instances": [{"inputs": "x"}] * 5}, 422, error(
        "Input validation error: `instances` must hold at most 4 (--max-client-batch-size), got 5",
        "batch size exceeded")),
    "a body of no route": ("/invocations", {"text": "x"}, 422,
                           error("the body must have `inputs`, `messages` or `prompt`", "validation")),
}


V1 = {
    "no JSON": (CHAT, "{", 400, api_error("Failed to parse the request body as JSON: *")),
    "a field that is missing": (CHAT, {}, 400, api_error("`messages`: Field required", "messages")),
    "a field of another type": (
        TEXTS, {"prompt": "x", "max_tokens": "5"}, 400,
        api_error("`max_tokens`: Input should be a valid integer", "max_tokens")),
    "a body that is no object": (CHAT, "[]", 400, api_error("`body`: Input should be an object")),
    "a rule": (CHAT, {"messages": HELLO, "max_tokens": 0}, 400,
               api_error("`max_tokens` must be at least 1, got 0", "max_tokens")),
    "a rule in a stream": (CHAT, {"messages": HELLO, "max_tokens": 0, "stream": True}, 400,
                           api_error("`max_tokens` must be at least 1, got 0", "max_tokens")),
    "an image": (CHAT, {"messages": IMAGE}, 400, api_error(f"`messages.0.content`: {SERVED}", "messages")),
    "a message without content": (CHAT, {"messages": [{"role": "user"}]}, 400, api_error(
        "a message of the role `user` has neither `content` nor `tool_calls`", "messages")),
    "a grammar and tools": (CHAT, {"messages": HELLO, "tools": [], "response_format": FORMAT}, 400,
                            api_error("Grammar and tools are mutually exclusive", "response_format")),
    "a schema that is missing": (CHAT, {"messages": HELLO, "response_format": {"type": "json_schema"}}, 400, api_error(
        "`response_format.json_schema` is missing: it holds the JSON schema", "response_format")),
    "a tool that is not there": (
        CHAT, {"messages": HELLO, "tool_choice": "paint"}, 400,
        api_error("`tool_choice` must be `auto`, `none`, `required` or one of the tools (there are none), got paint",
                  "tool_choice")),
    "messages that are too long": (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, api_error(
        "`messages` must have at most 1599 tokens (--max-input-tokens), got 2018; shorten it", "messages",
        "context_length_exceeded")),
    "a prompt that leaves no room": (TEXTS, {"prompt": "x" * 1000, "max_tokens": 1000}, 400, api_error(
        "`prompt` (1000 tokens) and `max_tokens` (1000) must be at most 1600 together (--max-total-tokens); shorten "
        "one", "prompt", "context_length_exceeded")),
    "a suffix": (TEXTS, {"prompt": "x", "suffix": "y"}, 400, api_error(
        "`suffix` is given, but text is only generated at the end of a prompt; leave it out", "suffix")),
    "too many prompts": (TEXTS, {"prompt": ["x"] * 5}, 400, api_error(
        "`prompt` must hold at most 4 texts (--max-client-batch-size), got 5", "prompt")),
    "a model that makes no embeddings": ("/v1/embeddings", {"input": "x"}, 400, api_error(
        "this model does not make embeddings; it generates text (/generate, /v1/chat/completions)")),
    "no adapters": ("/v1/adapters", {"id": "x"}, 400, api_error(
        "this model is served without adapters (--adapters)")),
}


def matches(told: str, expected: str) -> bool:
    return re.fullmatch(re.escape(expected).replace(r"\*", ".*"), told) is not None


@pytest.mark.parametrize(("path", "body", "status", "expected"), ASKED.values(), ids=ASKED)
def test_an_error(post, path, body, status, expected):
    config = RouterConfig(compat="tgi" if path.startswith("/v1/") else "none")
    got, headers, text = post(path, data=body if isinstance(body, str) else json.dumps(body), config=config)
    assert (got, headers.get("Content-Type")) == (status, "application/json" if status != 200 else "text/event-stream")
    assert matches(text, expected), text


@pytest.mark.parametrize(("path", "body", "status", "expected"), V1.values(), ids=V1)
def test_an_error_of_openai_s_routes(post, path, body, status, expected):
    got, headers, text = post(path, data=body if isinstance(body, str) else json.dumps(body))
    assert (got, headers.get("Content-Type")) == (status, "application/json")
    assert matches(text, expected), text


def test_an_error_of_a_body_that_is_too_long(post):
    told = "the body must have at most 10 bytes (--payload-limit)"
    config = RouterConfig(payload_limit=10)
    assert post("/generate", inputs="too long", config=config)[::2] == (413, error(told, "payload_too_large"))
    assert post(CHAT, messages=HELLO, config=config)[::2] == (413, api_error(told))
    config = RouterConfig(payload_limit=10, compat="tgi")
    assert post(CHAT, messages=HELLO, config=config)[::2] == (413, error(told, "payload_too_large"))


@pytest.mark.parametrize(("template", "text"), [
    (None, "this model has no chat template"), (ChatTemplate("{{ raise_exception('no roles') }}", {}), "no roles")])
@pytest.mark.parametrize("path", [CHAT, "/chat_tokenize", "/vertex"])
def test_an_error_of_the_template(post, path, template, text):
    body = {"instances": [{"messages": HELLO}]} if path == "/vertex" else {"messages": HELLO}
    status, _, told = post(path, template=template, **body, config=RouterConfig(compat="tgi"))
    assert status == 422
    assert matches(told, error(f"Template error: {text}*", "template_error"))
    if path == CHAT:
        status, _, told = post(path, template=template, **body)
        assert status == 400
        assert matches(told, api_error(f"Template error: {text}*", "messages"))


OUTSIDE = {
    "another media type": ("POST", "/generate", {"Content-Type": "text/plain"}, 415, error(
        "the body must be sent with Content-Type: application/json", "unsupported_media_type")),
    "no key": ("POST", "/generate", JSON, 401,
               error("a key is needed, sent as `Authorization: Bearer KEY`", "unauthorized")),
    "no path": ("GET", "/nowhere", {}, 404, error("404: Not Found", "not_found")),
    "no such method": ("PUT", "/generate", {}, 405, error("405: Method Not Allowed", "method_not_allowed")),
    "no such request": ("GET", "/v1/requests/x/explain", {}, 404,
                        api_error("no request of this id is served, or was one of the last *")),
    "another media type below /v1": ("POST", CHAT, {"Content-Type": "text/plain"}, 415, api_error(
        "the body must be sent with Content-Type: application/json")),
    "no key below /v1": ("POST", CHAT, JSON, 401, api_error(
        "a key is needed, sent as `Authorization: Bearer KEY`", None, "invalid_api_key")),
    "no path below /v1": ("POST", "/v1/responses", JSON, 404, api_error(
        "there is no POST /v1/responses here", None, "unknown_url")),
    "no path but /v1": ("GET", "/v1", {}, 404, api_error("there is no GET /v1 here", None, "unknown_url")),
    "no such method below /v1": ("GET", CHAT, {}, 405, api_error(
        f"there is no GET {CHAT} here, only POST", None, "method_not_supported")),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_an_error_before_a_request_is_understood(serve, what):
    method, path, headers, status, expected = OUTSIDE[what]

    async def scenario(client, engine):
        async with client.request(method, path, data=b"{}" if method == "POST" else None, headers=headers) as answer:
            text = await answer.text()
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
        assert matches(text, expected), text
    serve(scenario, config=RouterConfig(api_key="sk-one" if "no key" in what else ""))


V1_BODIES = {CHAT: {"messages": HELLO}, TEXTS: {"prompt": "x"}}


@pytest.mark.parametrize(("failure", "status", "expected"), [
    (RuntimeError("a mistake"), 500, error("Internal server error", "internal")),
    (TimedOut("too late"), 408, error("Request timed out: too late", "timeout"))])
def test_an_error_of_ours_and_the_end_of_a_time(serve, failure, status, expected):
    async def scenario(client, engine):
        for path, body in {"/generate": {"inputs": "x"}, **V1_BODIES}.items():
            engine.refusals = [failure]
            async with client.post(path, json=body) as answer:
                assert (answer.status, await answer.text()) == (status, expected)
    serve(scenario, config=RouterConfig(compat="tgi"))


@pytest.mark.parametrize(("failure", "status", "expected"), [
    (RuntimeError("a mistake"), 500, api_error("Internal server error", kind="server_error")),
    (TimedOut("too late"), 408, api_error("Request timed out: too late", kind="timeout_error")),
    (Overloaded("full"), 429, api_error("Model is overloaded: full", None, "rate_limit_exceeded", "rate_limit_error")),
    (NotReady("lost"), 503, api_error("Model is not ready: lost", kind="server_error")),
    (GenerationFailed("x"), 500, api_error("Request failed during generation: x", kind="server_error"))])
def test_what_is_not_the_client_s_fault_below_v1(serve, failure, status, expected):
    """OpenAI's clients retry after 408, 429 and any 5xx; 429 and 503 carry Retry-After."""
    async def scenario(client, engine):
        for path, body in V1_BODIES.items():
            engine.refusals = [failure]
            async with client.post(path, json=body) as answer:
                assert (answer.status, await answer.text()) == (status, expected)
            assert ("Retry-After" in answer.headers) == (status in {429, 503})
    serve(scenario)


def test_a_server_that_is_not_there_yet_says_so_below_v1():
    async def scenario():
        door = create_door(Probes(lambda: "it loads", lambda: None), Keys.of(RouterConfig()))
        async with TestClient(TestServer(door)) as client:
            answer = await client.post(CHAT, json={"messages": HELLO})
            assert (answer.status, await answer.text(), answer.headers["Retry-After"]) == (
                503, api_error("Model is not ready: it loads", kind="server_error"), "1")
    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------------------------
# Response headers

COMPUTED = {"x-compute-type", "x-compute-characters"}
TIMED = {"x-compute-time", "x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token",
         "x-prompt-tokens", "x-generated-tokens"}
OURS = {"x-request-id", "x-weft-exact"}
OURS_TIMED = {"x-queue-ms", "x-prefill-ms", "x-decode-ms", "x-cached-tokens", "x-wait-reason"}
BODIES = {"/": {"inputs": "x"}, "/generate": {"inputs": "x"}, CHAT: {"messages": HELLO}, TEXTS: {"prompt": "x"}}


def extra(headers) -> set[str]:
    return {name.lower() for name in headers if name.lower().startswith("x-")}


@pytest.mark.parametrize("path", BODIES)
def test_the_head_of_an_answer(post, path):
    _, headers, _ = post(path, **BODIES[path])
    assert extra(headers) == COMPUTED | TIMED | OURS | OURS_TIMED
    assert headers["Content-Type"] == "application/json"
    whole = {name for name in TIMED if name != "x-compute-time"}
    assert all(headers[name].isdecimal() for name in whole)
    assert re.fullmatch(r"\d+\.\d+(e-\d+)?", headers["x-compute-time"])


@pytest.mark.parametrize("path", ["/", "/generate_stream", CHAT, TEXTS])
def test_the_head_of_a_stream(post, path):
    _, headers, _ = post(path, **BODIES.get(path, {"inputs": "x"}), stream=True)
    assert extra(headers) == COMPUTED | OURS | {"x-accel-buffering"}
    assert [headers[name] for name in ("Content-Type", "Cache-Control", "X-Accel-Buffering")] == [
        "text/event-stream", "no-cache", "no"]


# ---------------------------------------------------------------------------------------------------------------------
# Server information

INFO = {
    "model_id": "a/b", "notice": None, "model_sha": None, "model_pipeline_tag": None, "model_dtype": "float32",
    "model_device_type": "cpu", "num_shard": 1, "exact": True, "max_concurrent_requests": 128, "max_best_of": 2,
    "max_stop_sequences": 4, "max_input_tokens": 1599, "max_total_tokens": 1600, "max_batch_total_tokens": 1600,
    "max_batch_size": 256, "waiting_served_ratio": 0.3, "max_waiting_tokens": 20, "validation_workers": 2,
    "max_client_batch_size": 4, "router": "text-generation-router", "version": version("weft"), "sha": None,
    "docker_label": None}
TELLING = {
    "/info": json.dumps(INFO),
    "/v1/models": '{"object": "list", "data": [{"id": "a/b", "object": "model", "created": 0, "owned_by": "a/b"}]}',
    "/health": "", "/": "", "/ping": "",
    "/ready": '{"status": "ready"}', "/live": '{"status": "alive"}', "/startup": '{"phase": "ready"}',
}


@pytest.mark.parametrize("path", TELLING)
def test_what_is_told(serve, path):
    async def scenario(client, engine):
        async with client.get(path) as answer:
            assert (answer.status, await answer.text()) == (200, TELLING[path])
    serve(scenario, about=About("a/b"))


@pytest.mark.parametrize("path", ["/health", "/", "/ping"])
def test_what_is_told_of_bad_health(serve, path):
    async def scenario(client, engine):
        engine.ailing = "the shards are lost"
        async with client.get(path) as answer:
            assert (answer.status, await answer.text()) == (503, error("unhealthy", "healthcheck"))
    serve(scenario)
