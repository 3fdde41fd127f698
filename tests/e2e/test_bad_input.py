"""Tests of bad input over a real socket on both routes: TGI's status and error body, and the next request works."""

import json
from io import BytesIO

import pytest
from support.in_process_server import events_of, play

PATHS = ["/generate", "/generate_stream"]
JSON = {"Content-Type": "application/json"}
LIMITS = {"http": True, "max_total_tokens": 1100, "max_input_tokens": 100}


def with_parameters(text):
    return '{"inputs": "a loom", "parameters": {' + text + "}}"


# Malformed requests get their real status on both routes.
MISUNDERSTOOD = {
    "nothing": ("", 400),
    "half": ('{"inputs": "a lo', 400),
    "no JSON": ("inputs=a loom", 400),
    "no text": (b'{"inputs": "\xff\xfe"}', 400),
    "half a surrogate pair": ('{"inputs": "\\ud800"}', 400),
    "a number that is none": (with_parameters('"temperature": NaN'), 422),
    "an infinite number": (with_parameters('"temperature": Infinity'), 422),
    "a list": ('["a loom"]', 422),
    "a string": ('"a loom"', 422),
    "null": ("null", 422),
    "no inputs": ('{"parameters": {}}', 422),
    "inputs that are a number": ('{"inputs": 5}', 422),
    "inputs that are null": ('{"inputs": null}', 422),
    "parameters that are a list": ('{"inputs": "a loom", "parameters": []}', 422),
    "a number as a string": (with_parameters('"max_new_tokens": "5"'), 422),
    "a number with a fraction": (with_parameters('"max_new_tokens": 1.5'), 422),
    "a negative number": (with_parameters('"max_new_tokens": -1'), 422),
    "true for a number": (with_parameters('"max_new_tokens": true'), 422),
    "a string for a list": (with_parameters('"stop": "x"'), 422),
    "a number too large for its field": (with_parameters(f'"max_new_tokens": {2**32}'), 422),
    "a number too large for any": (with_parameters(f'"seed": {10**400}'), 422),
    "a number that overflows": (with_parameters('"temperature": 1e999'), 422),
    "a priority that is a word": (with_parameters('"priority": "high"'), 422),
    "a priority without end": (with_parameters(f'"priority": {10**30}'), 422),
    "a salt that is a number": ('{"inputs": "a loom", "cache_salt": 5}', 422),
    "depth": ('{"inputs": ' + "[" * 100_000, 400),
    "10 MB": (json.dumps({"inputs": "x" * 10_000_000}), 413),
    "10 MB of nothing": (b"\0" * 10_000_000, 413),
}
# Well-formed requests with invalid values get status 200 and an error event within the stream.
NOT_ALLOWED = {
    "an empty prompt": '{"inputs": ""}',
    "a prompt over the limit": json.dumps({"inputs": "x" * 101}),
    "a prompt far over the limit": json.dumps({"inputs": "x" * 200_000}),
    "more new tokens than fit": json.dumps({"inputs": "x" * 100, "parameters": {"max_new_tokens": 1101}}),
    "a prompt that leaves no room": json.dumps({"inputs": "x" * 200, "parameters": {"max_new_tokens": 1000}}),
    "no new tokens": with_parameters('"max_new_tokens": 0'),
    "a temperature of 0": with_parameters('"temperature": 0'),
    "a temperature below 0": with_parameters('"temperature": -1'),
    "a temperature that 32 bits do not tell from 0": with_parameters('"temperature": 1e-60'),
    "a temperature that 32 bits cannot hold": with_parameters('"temperature": 1e60'),
    "a top_p of 1": with_parameters('"top_p": 1.0'),
    "a top_p below 0": with_parameters('"top_p": -0.5'),
    "a top_k of 0": with_parameters('"top_k": 0'),
    "a penalty of 0": with_parameters('"repetition_penalty": 0'),
    "too many stop strings": with_parameters('"stop": ["a", "b", "c", "d", "e"]'),
    "an empty stop string": with_parameters('"stop": [""]'),
    "too many candidates": with_parameters('"top_n_tokens": 6'),
    "too many choices": with_parameters('"best_of": 3'),
    "a priority above all": with_parameters('"priority": 11'),
    "an empty salt": with_parameters('"cache_salt": ""'),
    "a salt that is too long": json.dumps({"inputs": "a loom", "cache_salt": "x" * 257}),
    "two salts": '{"inputs": "a loom", "cache_salt": "a", "parameters": {"cache_salt": "b"}}',
    "a grammar of no kind": with_parameters('"grammar": {}'),
    "a grammar without a value": with_parameters('"grammar": {"type": "json"}'),
    "a grammar that repeats too often": with_parameters('"grammar": {"type": "regex", "value": "a{0,1000000000}"}'),
    "a grammar that looks ahead": with_parameters('"grammar": {"type": "regex", "value": "(?=a)a"}'),
    "a schema that is no JSON": with_parameters('"grammar": {"type": "json", "value": "{"}'),
    "a schema that cannot be obeyed": with_parameters('"grammar": {"type": "json", "value": {"not": {}}}'),
    "a schema with a number that is none": with_parameters('"grammar": {"type": "json", "value": {"const": 1e999}}'),
    "an adapter that nobody has": with_parameters('"adapter_id": "loom"'),
}


async def check_next_request_works(weft):
    assert (await weft.stream("a loom", 2))[-1]["generated_text"] == weft.expected_text("a loom", 2)
    answer = await weft.generate("a loom", 2)
    assert (await answer.json())["generated_text"] == weft.expected_text("a loom", 2)


def post(weft, path, content):
    return weft.http.post(path, data=BytesIO(content.encode() if isinstance(content, str) else content), headers=JSON)


def check_error(error, kind):
    assert set(error) == {"error", "error_type"}
    assert error["error_type"] == kind
    assert isinstance(error["error"], str)
    assert len(error["error"]) < 500


@pytest.mark.slow
def test_what_is_not_understood(tmp_path):
    kinds = {400: "bad_request", 413: "payload_too_large", 422: "validation"}

    async def story(weft):
        for what, (content, status) in MISUNDERSTOOD.items():
            for path in PATHS:
                async with post(weft, path, content) as answer:
                    assert answer.status == status, what
                    assert answer.content_type == "application/json"
                    check_error(await answer.json(), kinds[status])
            await check_next_request_works(weft)
        await weft.check_idle()
    play(story, tmp_path, **LIMITS)


@pytest.mark.slow
def test_what_is_not_allowed(tmp_path):
    async def story(weft):
        for what, content in NOT_ALLOWED.items():
            async with post(weft, "/generate", content) as answer:
                assert answer.status == 422, what
                check_error(await answer.json(), "validation")
            async with post(weft, "/generate_stream", content) as answer:
                assert answer.status == 200, what
                (error,) = events_of(await answer.text())
                check_error(error, "validation")
            await check_next_request_works(weft)
        await weft.check_idle()
    play(story, tmp_path, **LIMITS)


@pytest.mark.parametrize(("method", "path", "headers", "status"), [
    ("GET", "/generate", {}, 405), ("PUT", "/generate_stream", JSON, 405), ("POST", "/generate_more", JSON, 404),
    ("POST", "/generate", {"Content-Type": "text/plain"}, 415),
    ("POST", "/generate_stream", {"Content-Type": "application/x-www-form-urlencoded"}, 415)])
def test_what_is_asked_in_the_wrong_way(tmp_path, method, path, headers, status):
    async def story(weft):
        async with weft.http.request(method, path, data=b'{"inputs": "a loom"}', headers=headers) as answer:
            assert answer.status == status
            assert set(await answer.json()) == {"error", "error_type"}
        await check_next_request_works(weft)
    play(story, tmp_path, **LIMITS)


@pytest.mark.slow
def test_times_that_are_none(tmp_path):
    async def story(weft):
        for time in ("0", "-1", "soon", "nan", "inf", "1e9", "9" * 1000, "\t"):
            headers = JSON | {"x-request-timeout-ms": time}
            async with weft.http.post("/generate", data=b'{"inputs": "a loom"}', headers=headers) as answer:
                assert answer.status == 422, time
                check_error(await answer.json(), "validation")
            async with weft.http.post("/generate_stream", data=b'{"inputs": "a loom"}', headers=headers) as answer:
                (error,) = events_of(await answer.text())
                check_error(error, "validation")
        await check_next_request_works(weft)
        await weft.check_idle()
    play(story, tmp_path, **LIMITS)


@pytest.mark.slow
def test_more_new_tokens_than_are_left_are_cut_and_end_with_length(tmp_path):
    """Clients of TGI rely on requesting more tokens than fit."""
    async def story(weft):
        *_, last = await weft.stream("a loom", 10**9, details=True)
        assert last["details"]["finish_reason"] == "length"
        assert last["details"]["generated_tokens"] == 1100 - len("a loom")
    play(story, tmp_path, tokens_per_step=16, **LIMITS)


def test_a_limit_is_named_with_its_value_and_the_value_given(tmp_path):
    async def story(weft):
        answer = await weft.generate("x" * 101)
        text = (await answer.json())["error"]
        assert all(part in text for part in ("inputs", "100", "--max-input-tokens", "101"))
    play(story, tmp_path, **LIMITS)


@pytest.mark.parametrize(("path", "field"), [("/tokenize", "inputs"), ("/chat_tokenize", "messages")])
@pytest.mark.parametrize("compat", ["none", "lorax"])
def test_what_is_too_long_to_generate_from_is_too_long_to_be_told_as_tokens(tmp_path, path, field, compat):
    """Two megabytes of text used to become an answer of 115 MB, built on the event loop.

    The error's number is compared by its first digits, since a chat template adds tokens.
    """
    text = "x" * 100_000
    body = {"inputs": text} if field == "inputs" else {"messages": [{"role": "user", "content": text}]}

    async def story(weft):
        async with post(weft, path, json.dumps(body)) as answer:
            assert answer.status == 422
            error = await answer.json()
            check_error(error, "validation")
            assert f"`{field}` must have at most 100 tokens (--max-input-tokens), got 1000" in error["error"]
    play(story, tmp_path, compat=compat, **LIMITS)
