"""Tests of bad input over a real socket on both routes: TGI's status and error body, and the next request works."""

import json
from io import BytesIO

import pytest
from support.servers.in_process_server import parse_stream_events, play_scenario

GENERATE_PATHS = ["/generate", "/generate_stream"]
JSON_HEADERS = {"Content-Type": "application/json"}
LIMIT_SETTINGS = {"http": True, "max_total_tokens": 1100, "max_input_tokens": 100}


def make_body_with_parameters(parameters_json):
    return '{"inputs": "a loom", "parameters": {' + parameters_json + "}}"


# Malformed requests get their real status on both routes.
MALFORMED_BODIES = {
    "nothing": ("", 400),
    "half": ('{"inputs": "a lo', 400),
    "no JSON": ("inputs=a loom", 400),
    "no text": (b'{"inputs": "\xff\xfe"}', 400),
    "half a surrogate pair": ('{"inputs": "\\ud800"}', 400),
    "a number that is none": (make_body_with_parameters('"temperature": NaN'), 422),
    "an infinite number": (make_body_with_parameters('"temperature": Infinity'), 422),
    "a list": ('["a loom"]', 422),
    "a string": ('"a loom"', 422),
    "null": ("null", 422),
    "no inputs": ('{"parameters": {}}', 422),
    "inputs that are a number": ('{"inputs": 5}', 422),
    "inputs that are null": ('{"inputs": null}', 422),
    "parameters that are a list": ('{"inputs": "a loom", "parameters": []}', 422),
    "a number as a string": (make_body_with_parameters('"max_new_tokens": "5"'), 422),
    "a number with a fraction": (make_body_with_parameters('"max_new_tokens": 1.5'), 422),
    "a negative number": (make_body_with_parameters('"max_new_tokens": -1'), 422),
    "true for a number": (make_body_with_parameters('"max_new_tokens": true'), 422),
    "a string for a list": (make_body_with_parameters('"stop": "x"'), 422),
    "a number too large for its field": (make_body_with_parameters(f'"max_new_tokens": {2**32}'), 422),
    "a number too large for any": (make_body_with_parameters(f'"seed": {10**400}'), 422),
    "a number that overflows": (make_body_with_parameters('"temperature": 1e999'), 422),
    "a priority that is a word": (make_body_with_parameters('"priority": "high"'), 422),
    "a priority without end": (make_body_with_parameters(f'"priority": {10**30}'), 422),
    "a salt that is a number": ('{"inputs": "a loom", "cache_salt": 5}', 422),
    "depth": ('{"inputs": ' + "[" * 100_000, 400),
    "10 MB": (json.dumps({"inputs": "x" * 10_000_000}), 413),
    "10 MB of nothing": (b"\0" * 10_000_000, 413),
}
# Well-formed requests with invalid values get status 200 and an error event within the stream.
BODIES_WITH_INVALID_VALUES = {
    "an empty prompt": '{"inputs": ""}',
    "a prompt over the limit": json.dumps({"inputs": "x" * 101}),
    "a prompt far over the limit": json.dumps({"inputs": "x" * 200_000}),
    "more new tokens than fit": json.dumps({"inputs": "x" * 100, "parameters": {"max_new_tokens": 1101}}),
    "a prompt that leaves no room": json.dumps({"inputs": "x" * 200, "parameters": {"max_new_tokens": 1000}}),
    "no new tokens": make_body_with_parameters('"max_new_tokens": 0'),
    "a temperature of 0": make_body_with_parameters('"temperature": 0'),
    "a temperature below 0": make_body_with_parameters('"temperature": -1'),
    "a temperature that 32 bits do not tell from 0": make_body_with_parameters('"temperature": 1e-60'),
    "a temperature that 32 bits cannot hold": make_body_with_parameters('"temperature": 1e60'),
    "a top_p of 1": make_body_with_parameters('"top_p": 1.0'),
    "a top_p below 0": make_body_with_parameters('"top_p": -0.5'),
    "a top_k of 0": make_body_with_parameters('"top_k": 0'),
    "a penalty of 0": make_body_with_parameters('"repetition_penalty": 0'),
    "too many stop strings": make_body_with_parameters('"stop": ["a", "b", "c", "d", "e"]'),
    "an empty stop string": make_body_with_parameters('"stop": [""]'),
    "too many candidates": make_body_with_parameters('"top_n_tokens": 6'),
    "too many choices": make_body_with_parameters('"best_of": 3'),
    "a priority above all": make_body_with_parameters('"priority": 11'),
    "an empty salt": make_body_with_parameters('"cache_salt": ""'),
    "a salt that is too long": json.dumps({"inputs": "a loom", "cache_salt": "x" * 257}),
    "two salts": '{"inputs": "a loom", "cache_salt": "a", "parameters": {"cache_salt": "b"}}',
    "a grammar of no kind": make_body_with_parameters('"grammar": {}'),
    "a grammar without a value": make_body_with_parameters('"grammar": {"type": "json"}'),
    "a grammar that repeats too often": make_body_with_parameters(
        '"grammar": {"type": "regex", "value": "a{0,1000000000}"}'),
    "a grammar that looks ahead": make_body_with_parameters('"grammar": {"type": "regex", "value": "(?=a)a"}'),
    "a schema that is no JSON": make_body_with_parameters('"grammar": {"type": "json", "value": "{"}'),
    "a schema that cannot be obeyed": make_body_with_parameters('"grammar": {"type": "json", "value": {"not": {}}}'),
    "a schema with a number that is none": make_body_with_parameters(
        '"grammar": {"type": "json", "value": {"const": 1e999}}'),
    "an adapter that nobody has": make_body_with_parameters('"adapter_id": "loom"'),
}


async def check_next_request_works(weft):
    assert (await weft.generate_stream("a loom", 2))[-1]["generated_text"] == weft.compute_expected_text("a loom", 2)
    answer = await weft.generate("a loom", 2)
    assert (await answer.json())["generated_text"] == weft.compute_expected_text("a loom", 2)


def post_body(weft, path, content):
    return weft.http_session.post(path, data=BytesIO(content.encode() if isinstance(content, str) else content),
                                  headers=JSON_HEADERS)


def check_error(error, error_type):
    assert set(error) == {"error", "error_type"}
    assert error["error_type"] == error_type
    assert isinstance(error["error"], str)
    assert len(error["error"]) < 500


@pytest.mark.slow
def test_malformed_requests_get_their_status_on_both_routes(tmp_path):
    kinds = {400: "bad_request", 413: "payload_too_large", 422: "validation"}

    async def scenario(weft):
        for case, (content, status) in MALFORMED_BODIES.items():
            for path in GENERATE_PATHS:
                async with post_body(weft, path, content) as answer:
                    assert answer.status == status, case
                    assert answer.content_type == "application/json"
                    check_error(await answer.json(), kinds[status])
            await check_next_request_works(weft)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **LIMIT_SETTINGS)


@pytest.mark.slow
def test_invalid_values_are_rejected_or_reported_within_the_stream(tmp_path):
    async def scenario(weft):
        for case, content in BODIES_WITH_INVALID_VALUES.items():
            async with post_body(weft, "/generate", content) as answer:
                assert answer.status == 422, case
                check_error(await answer.json(), "validation")
            async with post_body(weft, "/generate_stream", content) as answer:
                assert answer.status == 200, case
                (error,) = parse_stream_events(await answer.text())
                check_error(error, "validation")
            await check_next_request_works(weft)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **LIMIT_SETTINGS)


@pytest.mark.parametrize(("method", "path", "headers", "status"),
                         [("GET", "/generate", {}, 405), ("PUT", "/generate_stream", JSON_HEADERS, 405),
                          ("POST", "/generate_more", JSON_HEADERS, 404),
                          ("POST", "/generate", {"Content-Type": "text/plain"}, 415),
                          ("POST", "/generate_stream", {"Content-Type": "application/x-www-form-urlencoded"}, 415)])
def test_wrong_method_path_or_content_type_is_an_error(tmp_path, method, path, headers, status):
    async def scenario(weft):
        async with weft.http_session.request(method, path, data=b'{"inputs": "a loom"}', headers=headers) as answer:
            assert answer.status == status
            assert set(await answer.json()) == {"error", "error_type"}
        await check_next_request_works(weft)
    play_scenario(scenario, tmp_path, **LIMIT_SETTINGS)


@pytest.mark.slow
def test_invalid_timeout_headers_are_rejected(tmp_path):
    async def scenario(weft):
        for time in ("0", "-1", "soon", "nan", "inf", "1e9", "9" * 1000, "\t"):
            headers = JSON_HEADERS | {"x-request-timeout-ms": time}
            async with weft.http_session.post("/generate", data=b'{"inputs": "a loom"}', headers=headers) as answer:
                assert answer.status == 422, time
                check_error(await answer.json(), "validation")
            async with weft.http_session.post("/generate_stream", data=b'{"inputs": "a loom"}',
                                              headers=headers) as answer:
                (error,) = parse_stream_events(await answer.text())
                check_error(error, "validation")
        await check_next_request_works(weft)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **LIMIT_SETTINGS)


@pytest.mark.slow
def test_max_new_tokens_beyond_the_context_is_capped_and_ends_with_length(tmp_path):
    """Clients of TGI rely on requesting more tokens than fit."""
    async def scenario(weft):
        *_, last = await weft.generate_stream("a loom", 10**9, details=True)
        assert last["details"]["finish_reason"] == "length"
        assert last["details"]["generated_tokens"] == 1100 - len("a loom")
    play_scenario(scenario, tmp_path, tokens_per_step=16, **LIMIT_SETTINGS)


def test_error_names_the_limit_its_value_and_the_given_value(tmp_path):
    async def scenario(weft):
        answer = await weft.generate("x" * 101)
        text = (await answer.json())["error"]
        assert all(part in text for part in ("inputs", "100", "--max-input-tokens", "101"))
    play_scenario(scenario, tmp_path, **LIMIT_SETTINGS)


@pytest.mark.parametrize(("path", "field"), [("/tokenize", "inputs"), ("/chat_tokenize", "messages")])
@pytest.mark.parametrize("compat", ["none", "lorax"])
def test_tokenize_routes_enforce_max_input_tokens(tmp_path, path, field, compat):
    """Two megabytes of text used to become an answer of 115 MB, built on the event loop.

    The error's number is compared by its first digits, since a chat template adds tokens.
    """
    text = "x" * 100_000
    body = {"inputs": text} if field == "inputs" else {"messages": [{"role": "user", "content": text}]}

    async def scenario(weft):
        async with post_body(weft, path, json.dumps(body)) as answer:
            assert answer.status == 422
            error = await answer.json()
            check_error(error, "validation")
            assert f"`{field}` must have at most 100 tokens (--max-input-tokens), got 1000" in error["error"]
    play_scenario(scenario, tmp_path, compat=compat, **LIMIT_SETTINGS)
