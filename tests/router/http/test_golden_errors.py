"""Byte-exact errors (status, type and text) and response headers, as clients of text-generation-inference read them;
below /v1 as clients of OpenAI do, unless --compat tgi is set."""

import asyncio
import json
import re
from importlib.metadata import version

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.errors import GenerationFailed, NotReady, Overloaded, TimedOut
from router.http.routes.status import ProbeRoutes
from router.http.server import create_stand_in_app
from router.http.transport.services import ServedModel
from router.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
BODY_TYPE_ERROR = "Failed to deserialize the JSON body into the target type: "
JSON_HEADERS = {"Content-Type": "application/json"}
IMAGE_MESSAGES = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,x"}}]}]
CONTENT_RULE = "must be a string or a list of parts of type `text`; images and other parts are not served"
JSON_FORMAT = {"type": "json_object"}


def tgi_error(text: str, error_type: str) -> str:
    return json.dumps({"error": text, "error_type": error_type}, separators=(",", ":"))


def openai_error(message: str, param: str | None = None, code: str | None = None,
                 error_type: str = "invalid_request_error") -> str:
    return json.dumps({"error": {"message": message, "type": error_type, "param": param, "code": code}},
                      separators=(",", ":"))


# Requests with the expected errors (below /v1 with --compat tgi); `*` matches any message of the JSON parser.
TGI_ERROR_CASES = {
    "no JSON": ("/generate", "{", 400, tgi_error("Failed to parse the request body as JSON: *", "bad_request")),
    "a field that is missing": ("/generate", {}, 422,
                                tgi_error(f"{BODY_TYPE_ERROR}`inputs` is missing", "validation")),
    "a field of another type": (
        "/generate", {"inputs": 5}, 422,
        tgi_error(f"{BODY_TYPE_ERROR}`inputs` must be a string, got 5", "validation")),
    "null where it is no value": (
        "/generate", {"inputs": "x", "parameters": {"do_sample": None}}, 422,
        tgi_error(f"{BODY_TYPE_ERROR}`parameters.do_sample` must be true or false, got null", "validation")),
    "several texts": ("/generate", {"inputs": ["x"]}, 422,
                      tgi_error(f"{BODY_TYPE_ERROR}`inputs` must be a string, got an array", "validation")),
    "another shape in a stream": (
        "/generate_stream", {}, 422, tgi_error(f"{BODY_TYPE_ERROR}`inputs` is missing", "validation")),
    "no text": ("/generate", {"inputs": ""}, 422,
                tgi_error("Input validation error: `inputs` must not be an empty string", "validation")),
    "a rule": ("/generate", {"inputs": "x", "parameters": {"temperature": 0}}, 422,
               tgi_error("Input validation error: `temperature` must be above 0, got 0.0", "validation")),
    "a rule in a stream": (
        "/generate_stream", {"inputs": "x", "parameters": {"top_n_tokens": 6}}, 200,
        "data: " + tgi_error("Input validation error: `top_n_tokens` must be at most 5 (--max-top-n-tokens), got 6",
                             "validation") + "\n\n"),
    "a rule for chats": (CHAT_PATH, {"messages": MESSAGES, "max_tokens": 0}, 422,
                         tgi_error("Input validation error: `max_tokens` must be at least 1, got 0", "validation")),
    "a rule for streamed chats": (
        CHAT_PATH, {"messages": MESSAGES, "max_tokens": 0, "stream": True}, 422,
        tgi_error("Input validation error: `max_tokens` must be at least 1, got 0", "validation")),
    "an image": (CHAT_PATH, {"messages": IMAGE_MESSAGES}, 422,
                 tgi_error(f"{BODY_TYPE_ERROR}`messages.0.content` {CONTENT_RULE}", "validation")),
    "a grammar and tools": (CHAT_PATH, {"messages": MESSAGES, "tools": [], "response_format": JSON_FORMAT}, 422,
                            tgi_error("Tool error: Grammar and tools are mutually exclusive", "tool_error")),
    "a tool that is not there": (
        CHAT_PATH, {"messages": MESSAGES, "tool_choice": "paint"}, 422,
        tgi_error(
            "Tool error: `tool_choice` must be `auto`, `none`, `required` or one of the tools (there are none), got "
            "paint", "tool_error")),
    "a suffix": (TEXT_PATH, {"prompt": "x", "suffix": "y"}, 422, tgi_error(
        "Input validation error: `suffix` is given, but text is only generated at the end of a prompt; leave it out",
        "suffix not supported")),
    "too many prompts": (TEXT_PATH, {"prompt": ["x"] * 5}, 422, tgi_error(
        "Input validation error: `prompt` must hold at most 4 texts (--max-client-batch-size), got 5",
        "batch size exceeded")),
    "too many instances": ("/vertex", {"instances": [{"inputs": "x"}] * 5}, 422, tgi_error(
        "Input validation error: `instances` must hold at most 4 (--max-client-batch-size), got 5",
        "batch size exceeded")),
    "a body of no route": ("/invocations", {"text": "x"}, 422,
                           tgi_error("the body must have `inputs`, `messages` or `prompt`", "validation")),
}


OPENAI_ERROR_CASES = {
    "no JSON": (CHAT_PATH, "{", 400, openai_error("Failed to parse the request body as JSON: *")),
    "a field that is missing": (CHAT_PATH, {}, 400, openai_error("`messages` is missing", "messages")),
    "a field of another type": (
        TEXT_PATH, {"prompt": "x", "max_tokens": "5"}, 400,
        openai_error("`max_tokens` must be an integer, got '5'", "max_tokens")),
    "a body that is no object": (CHAT_PATH, "[]", 400, openai_error("the body must be an object, got an array")),
    "a rule": (CHAT_PATH, {"messages": MESSAGES, "max_tokens": 0}, 400,
               openai_error("`max_tokens` must be at least 1, got 0", "max_tokens")),
    "a rule in a stream": (CHAT_PATH, {"messages": MESSAGES, "max_tokens": 0, "stream": True}, 400,
                           openai_error("`max_tokens` must be at least 1, got 0", "max_tokens")),
    "an image": (CHAT_PATH, {"messages": IMAGE_MESSAGES}, 400,
                 openai_error(f"`messages.0.content` {CONTENT_RULE}", "messages")),
    "a message without content": (CHAT_PATH, {"messages": [{"role": "user"}]}, 400, openai_error(
        "a message of the role `user` has neither `content` nor `tool_calls`", "messages")),
    "a schema that is missing": (
        CHAT_PATH, {"messages": MESSAGES, "response_format": {"type": "json_schema"}}, 400, openai_error(
            "`response_format.json_schema` is missing: it holds the JSON schema", "response_format")),
    "a tool that is not there": (
        CHAT_PATH, {"messages": MESSAGES, "tool_choice": "paint"}, 400,
        openai_error("`tool_choice` must be `auto`, `none`, `required` or one of the tools (there are none), got paint",
                     "tool_choice")),
    "messages that are too long": (
        CHAT_PATH, {"messages": [{"role": "user", "content": "x" * 2000}]}, 400, openai_error(
            "the prompt is too long: `messages` must have at most 1599 tokens (--max-input-tokens), got 2018; shorten "
            "it", "messages", "context_length_exceeded")),
    "a prompt that leaves no room": (TEXT_PATH, {"prompt": "x" * 1000, "max_tokens": 1000}, 400, openai_error(
        "the prompt is too long: `prompt` (1000 tokens) and `max_tokens` (1000) must be at most 1600 together "
        "(--max-total-tokens); shorten one", "prompt", "context_length_exceeded")),
    "a suffix": (TEXT_PATH, {"prompt": "x", "suffix": "y"}, 400, openai_error(
        "`suffix` is given, but this model does not support insert: its tokenizer has no tokens around a place to "
        "fill, such as <|fim_middle|>; leave it out", "suffix")),
    "too many prompts": (TEXT_PATH, {"prompt": ["x"] * 2049}, 400, openai_error(
        "`prompt` must hold at most 2048 texts with `n` 1, got 2049", "prompt")),
    "a model that makes no embeddings": ("/v1/embeddings", {"input": "x"}, 400, openai_error(
        "this model does not make embeddings; it generates text (/generate, /v1/chat/completions)")),
    "no adapters": ("/v1/adapters", {"id": "x"}, 400, openai_error(
        "this model is served without adapters (--adapters)")),
}


def matches_pattern(text: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text) is not None


@pytest.mark.parametrize(("path", "body", "status", "expected"), TGI_ERROR_CASES.values(), ids=TGI_ERROR_CASES)
def test_client_error_matches_tgi_byte_for_byte(post, path, body, status, expected):
    config = RouterConfig(compat="tgi" if path.startswith("/v1/") else "none")
    response_status, headers, text = post(path, data=body if isinstance(body, str) else json.dumps(body), config=config)
    content_type = "application/json" if status != 200 else "text/event-stream"
    assert (response_status, headers.get("Content-Type")) == (status, content_type)
    assert matches_pattern(text, expected), text


@pytest.mark.parametrize(("path", "body", "status", "expected"), OPENAI_ERROR_CASES.values(), ids=OPENAI_ERROR_CASES)
def test_client_error_of_openai_routes_matches_byte_for_byte(post, path, body, status, expected):
    response_status, headers, text = post(path, data=body if isinstance(body, str) else json.dumps(body))
    assert (response_status, headers.get("Content-Type")) == (status, "application/json")
    assert matches_pattern(text, expected), text


def test_oversized_body_error_matches_byte_for_byte(post):
    message = "the body must have at most 10 bytes (--payload-limit)"
    config = RouterConfig(payload_limit=10)
    assert post("/generate", inputs="too long", config=config)[::2] == (413, tgi_error(message, "payload_too_large"))
    assert post(CHAT_PATH, messages=MESSAGES, config=config)[::2] == (413, openai_error(message))
    config = RouterConfig(payload_limit=10, compat="tgi")
    assert post(CHAT_PATH, messages=MESSAGES, config=config)[::2] == (413, tgi_error(message, "payload_too_large"))


@pytest.mark.parametrize(("template", "message"), [
    (None, "this model has no chat template"), (ChatTemplate("{{ raise_exception('no roles') }}", {}), "no roles")])
@pytest.mark.parametrize("path", [CHAT_PATH, "/chat_tokenize", "/vertex"])
def test_template_error_matches_byte_for_byte(post, path, template, message):
    body = {"instances": [{"messages": MESSAGES}]} if path == "/vertex" else {"messages": MESSAGES}
    status, _, text = post(path, template=template, **body, config=RouterConfig(compat="tgi"))
    assert status == 422
    assert matches_pattern(text, tgi_error(f"Template error: {message}*", "template_error"))
    if path == CHAT_PATH:
        status, _, text = post(path, template=template, **body)
        assert status == 400
        assert matches_pattern(text, openai_error(f"Template error: {message}*", "messages"))


EARLY_ERROR_CASES = {
    "another media type": ("POST", "/generate", {"Content-Type": "text/plain"}, 415, tgi_error(
        "the body must be sent with Content-Type: application/json", "unsupported_media_type")),
    "no key": ("POST", "/generate", JSON_HEADERS, 401,
               tgi_error("a key is needed, sent as `Authorization: Bearer KEY`", "unauthorized")),
    "no path": ("GET", "/nowhere", {}, 404, tgi_error(
        "there is no GET /nowhere here; GET /docs lists the routes", "not_found")),
    "no path of Ollama's": ("POST", "/api/nowhere", JSON_HEADERS, 404,
                            '{"error":"there is no POST /api/nowhere here; GET /docs lists the routes"}'),
    "no path of Anthropic's": ("POST", "/v1/messages/nowhere", JSON_HEADERS, 404,
                               '{"type":"error","error":{"type":"not_found_error","message":'
                               '"there is no POST /v1/messages/nowhere here; GET /docs lists the routes"}}'),
    "no such method": ("PUT", "/generate", {}, 405, tgi_error(
        "there is no PUT /generate here, only POST", "method_not_allowed")),
    "no such request": ("GET", "/v1/requests/x/explain", {}, 404,
                        openai_error("there is no request of this id, neither unfinished nor among the last * that "
                                     "ended; an answer has its id in the header x-request-id")),
    "another media type below /v1": ("POST", CHAT_PATH, {"Content-Type": "text/plain"}, 415, openai_error(
        "the body must be sent with Content-Type: application/json")),
    "no key below /v1": ("POST", CHAT_PATH, JSON_HEADERS, 401, openai_error(
        "a key is needed, sent as `Authorization: Bearer KEY`", None, "invalid_api_key")),
    "no path below /v1": ("POST", "/v1/nowhere", JSON_HEADERS, 404, openai_error(
        "there is no POST /v1/nowhere here; GET /docs lists the routes", None, "unknown_url")),
    "no path but /v1": ("GET", "/v1", {}, 404, openai_error(
        "there is no GET /v1 here; GET /docs lists the routes", None, "unknown_url")),
    "no version": ("POST", "/chat/completions", {}, 404, openai_error(
        "there is no POST /chat/completions here, but /v1/chat/completions; the base URL of OpenAI's clients must end "
        "with /v1", None, "unknown_url")),
    "version twice": ("POST", "/v1/v1/chat/completions", {}, 404, openai_error(
        "there is no POST /v1/v1/chat/completions here, but /v1/chat/completions; /v1 stands in the client's base URL "
        "already", None, "unknown_url")),
    "no such method below /v1": ("GET", CHAT_PATH, {}, 405, openai_error(
        f"there is no GET {CHAT_PATH} here, only POST", None, "method_not_supported")),
}


@pytest.mark.parametrize("case", EARLY_ERROR_CASES)
def test_error_before_the_body_is_parsed_matches_byte_for_byte(serve, case):
    method, path, headers, status, expected = EARLY_ERROR_CASES[case]

    async def scenario(client, engine):
        async with client.request(method, path, data=b"{}" if method == "POST" else None, headers=headers) as answer:
            text = await answer.text()
        assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
        assert matches_pattern(text, expected), text
    serve(scenario, config=RouterConfig(api_key="sk-one" if "no key" in case else ""))


OPENAI_BODIES = {CHAT_PATH: {"messages": MESSAGES}, TEXT_PATH: {"prompt": "x"}}


@pytest.mark.parametrize(("failure", "status", "expected"), [
    (RuntimeError("a mistake"), 500, tgi_error("Internal server error", "internal")),
    (TimedOut("too late"), 408, tgi_error("Request timed out: too late", "timeout"))])
def test_internal_error_and_timeout_match_tgi_byte_for_byte(serve, failure, status, expected):
    async def scenario(client, engine):
        for path, body in {"/generate": {"inputs": "x"}, **OPENAI_BODIES}.items():
            engine.submit_errors = [failure]
            async with client.post(path, json=body) as answer:
                assert (answer.status, await answer.text()) == (status, expected)
    serve(scenario, config=RouterConfig(compat="tgi"))


@pytest.mark.parametrize(("failure", "status", "expected"), [
    (RuntimeError("a mistake"), 500, openai_error("Internal server error", error_type="server_error")),
    (TimedOut("too late"), 408, openai_error("Request timed out: too late", error_type="timeout_error")),
    (Overloaded("full"), 429,
     openai_error("Model is overloaded: full", None, "rate_limit_exceeded", "rate_limit_error")),
    (NotReady("lost"), 503, openai_error("Model is not ready: lost", error_type="server_error")),
    (GenerationFailed("x"), 500, openai_error("Request failed during generation: x", error_type="server_error"))])
def test_server_side_errors_match_openai_byte_for_byte(serve, failure, status, expected):
    """OpenAI's clients retry after 408, 429 and any 5xx; 429 and 503 carry Retry-After."""
    async def scenario(client, engine):
        for path, body in OPENAI_BODIES.items():
            engine.submit_errors = [failure]
            async with client.post(path, json=body) as answer:
                assert (answer.status, await answer.text()) == (status, expected)
            assert ("Retry-After" in answer.headers) == (status in {429, 503})
    serve(scenario)


def test_stand_in_server_error_matches_openai_byte_for_byte():
    async def scenario():
        stand_in_app = create_stand_in_app(ProbeRoutes(lambda: "it loads", lambda: None),
                                           ApiKeys.from_config(RouterConfig()))
        async with TestClient(TestServer(stand_in_app)) as client:
            answer = await client.post(CHAT_PATH, json={"messages": MESSAGES})
            assert (answer.status, await answer.text(), answer.headers["Retry-After"]) == (
                503, openai_error("Model is not ready: it loads", error_type="server_error"), "1")
    asyncio.run(scenario())


# ---------------------------------------------------------------------------------------------------------------------
# Response headers

@pytest.mark.parametrize(("path", "fields", "ignored"), [
    ("/generate", {"inputs": "x", "max_tokens": 5, "parameters": {"max_tokns": 5, "seed": 1}},
     "max_tokens, parameters.max_tokns"),
    ("/generate_stream", {"inputs": "x", "stream": True}, "stream"),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokns": 5}, "max_tokns"),
    ("/v1/completions", {"prompt": "x", "a\r\nb: c" + 80 * "d": 5}, "a??b??c" + 53 * "d"),
    ("/generate", {"inputs": "x", **{f"f{i}": i for i in range(9)}}, "f0, f1, f2, f3, f4, f5, f6, f7, ..."),
    ("/generate", {"inputs": "", "max_tokens": 5}, "max_tokens"), ("/generate", {"inputs": "x"}, None),
    ("/tokenize", {"inputs": "x", "model": "y"}, "model"), ("/tokenize", {"inputs": "x"}, None),
    ("/vertex", {"instances": [{"inputs": "x"}, {"inputs": "x", "max_tokens": 5}], "seed": 1},
     "seed, instances.1.max_tokens")])
def test_unknown_fields_are_named_in_a_header(post, path, fields, ignored):
    _, headers, _ = post(path, **fields)
    assert headers.get("x-ignored-fields") == ignored

COMPUTE_HEADERS = {"x-compute-type", "x-compute-characters"}
TIMING_HEADERS = {"x-compute-time", "x-total-time", "x-validation-time", "x-queue-time", "x-inference-time",
                  "x-time-per-token", "x-prompt-tokens", "x-generated-tokens"}
WEFT_HEADERS = {"x-request-id", "x-weft-exact"}
WEFT_TIMING_HEADERS = {"x-queue-ms", "x-prefill-ms", "x-decode-ms", "x-cached-tokens", "x-wait-reason"}
BODY_BY_PATH = {"/": {"inputs": "x"}, "/generate": {"inputs": "x"}, CHAT_PATH: {"messages": MESSAGES},
                TEXT_PATH: {"prompt": "x"}}


def get_x_headers(headers) -> set[str]:
    return {name.lower() for name in headers if name.lower().startswith("x-")}


@pytest.mark.parametrize("path", BODY_BY_PATH)
def test_response_headers_are_complete(post, path):
    _, headers, _ = post(path, **BODY_BY_PATH[path])
    assert get_x_headers(headers) == COMPUTE_HEADERS | TIMING_HEADERS | WEFT_HEADERS | WEFT_TIMING_HEADERS
    assert headers["Content-Type"] == "application/json"
    whole = {name for name in TIMING_HEADERS if name != "x-compute-time"}
    assert all(headers[name].isdecimal() for name in whole)
    assert re.fullmatch(r"\d+\.\d+(e-\d+)?", headers["x-compute-time"])


@pytest.mark.parametrize("path", ["/", "/generate_stream", CHAT_PATH, TEXT_PATH])
def test_stream_headers_are_complete(post, path):
    flag = {} if path == "/generate_stream" else {"stream": True}
    _, headers, _ = post(path, **BODY_BY_PATH.get(path, {"inputs": "x"}), **flag)
    assert get_x_headers(headers) == COMPUTE_HEADERS | WEFT_HEADERS | {"x-accel-buffering"}
    assert [headers[name] for name in ("Content-Type", "Cache-Control", "X-Accel-Buffering")] == [
        "text/event-stream", "no-cache", "no"]


# ---------------------------------------------------------------------------------------------------------------------
# Server information

EXPECTED_INFO = {
    "model_id": "a/b", "notice": None, "model_sha": None, "model_pipeline_tag": None, "model_dtype": "float32",
    "model_device_type": "cpu", "quantization": None, "num_shard": 1, "exact": True, "max_concurrent_requests": 128,
    "max_best_of": 2, "max_stop_sequences": 4, "max_input_tokens": 1599, "max_total_tokens": 1600,
    "max_batch_total_tokens": 1600, "max_batch_size": 256, "waiting_served_ratio": 0.3, "max_waiting_tokens": 20,
    "validation_workers": 2, "max_client_batch_size": 4, "router": "text-generation-router",
    "version": version("weft"), "sha": None, "docker_label": None}
SERVER_INFO_CASES = {
    "/info": json.dumps(EXPECTED_INFO),
    "/v1/models": '{"object": "list", "data": [{"id": "a/b", "object": "model", "created": 0, "owned_by": "a/b", '
                  f'"root": "a/b", "parent": null, "max_model_len": {EXPECTED_INFO["max_total_tokens"]}}}]}}',
    "/health": "", "/": "", "/ping": "",
    "/ready": '{"status": "ready"}', "/live": '{"status": "alive"}', "/startup": '{"phase": "ready"}',
}


@pytest.mark.parametrize("path", SERVER_INFO_CASES)
def test_server_information_matches_byte_for_byte(serve, path):
    async def scenario(client, engine):
        async with client.get(path) as answer:
            assert (answer.status, await answer.text()) == (200, SERVER_INFO_CASES[path])
    serve(scenario, served_model=ServedModel("a/b"))


@pytest.mark.parametrize("path", ["/health", "/", "/ping"])
def test_bad_health_response_matches_byte_for_byte(serve, path):
    async def scenario(client, engine):
        engine.unavailable_reason = "the shards are lost"
        async with client.get(path) as answer:
            assert (answer.status, await answer.text()) == (503, tgi_error("unhealthy", "healthcheck"))
    serve(scenario)
