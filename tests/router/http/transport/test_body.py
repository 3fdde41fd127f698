"""Reading and checking of request bodies."""

import asyncio
import gzip
import io
import json
import pkgutil
import re
import threading
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.config import RouterConfig
from router.http.docs import ROUTE_SECTIONS
from router.http.openai.requests import ChatRequest
from router.http.tgi.rendering import choice_fields
from router.http.transport import body
from router.http.transport.body import (
    LONG_BODY_THREADS,
    MAX_CONTAINERS,
    MAX_ENTRIES,
    MAX_FIELD_NAME_LENGTH,
    MAX_INLINE_BYTES,
    MAX_STRINGS,
    MAX_VALUES,
    NUM_LONG_BODY_THREADS,
    SLICE_BYTES,
    UNUSUAL_NAME_CHARACTERS,
    BodyValidationError,
    LenientBodyModel,
    ListJson,
    check_num_values,
    decompress,
    decompress_in_slices,
    format_field_names,
    parse_large_body,
)

DEEPLY_NESTED_JSON = b"[" * 100_000 + b"]" * 100_000
INVALID_JSON_BODIES = {
    "empty": b"",
    "blank": b" ",
    "open": b'{"inputs":"x"',
    "more": b'{"inputs":"x"}}',
    "bytes": b"\xff",
    "text that is not UTF-8": b'{"inputs":"\xff"}',
    "half a surrogate pair": b'{"inputs":"\\ud800"}',
    "surrogates in the wrong order": b'{"inputs":"\\udc00\\ud800"}',
    "deep": DEEPLY_NESTED_JSON,
    "deep where nobody looks": b'{"inputs":"x","more":%b}' % DEEPLY_NESTED_JSON,
    "byte order mark": b'\xef\xbb\xbf{"inputs":"x"}',
    "5000 digits": b'{"inputs":"x","parameters":{"seed":%b}}' % (b"9" * 5000),
}
MISTYPED_BODIES = {
    "null": (b"null", "body"),
    "list": (b"[]", "body"),
    "no inputs": (b"{}", "inputs"),
    "inputs null": (b'{"inputs":null}', "inputs"),
    "inputs list": (b'{"inputs":["x"]}', "inputs"),
    "parameters null": (b'{"inputs":"x","parameters":null}', "parameters"),
}


@pytest.mark.parametrize("content", INVALID_JSON_BODIES.values(), ids=INVALID_JSON_BODIES)
def test_invalid_json_is_rejected(post, content):
    status, _, text = post("/generate", data=content)
    response = json.loads(text)
    assert status == 400
    assert response["error_type"] == "bad_request"
    assert response["error"].startswith("Failed to parse the request body as JSON: ")


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
@pytest.mark.parametrize(("content", "field_path"), MISTYPED_BODIES.values(), ids=MISTYPED_BODIES)
def test_mistyped_json_is_rejected_with_the_field(post, path, content, field_path):
    status, _, text = post(path, data=content)
    response = json.loads(text)
    assert status == 422
    assert response["error_type"] == "validation"
    place = "the body" if field_path == "body" else f"`{field_path}`"
    assert response["error"].startswith(f"Failed to deserialize the JSON body into the target type: {place} ")


@pytest.mark.parametrize(("field", "value"), [
    *((field, "null") for field in ("do_sample", "stop", "watermark", "details", "decoder_input_details")),
    *(("max_new_tokens", value) for value in ('"5"', "5.0", "true", "-1", "4294967296", "1e3", "[]")),
    *(("temperature", value) for value in ('"1"', "true", "NaN", "Infinity", "-Infinity", "1e999", "9" * 500)),
    *(("seed", value) for value in ("-1", "18446744073709551616", "1.5")),
    *(("stop", value) for value in ('"x"', "[1]", '["x",null]', "{}")),
    ("do_sample", "1"), ("top_k", "2147483648"), ("adapter_id", "7"), ("best_of", "-1"), ("truncate", "1.0"),
])
def test_field_types_are_strict(post, field, value):
    status, _, text = post("/generate", data=f'{{"inputs":"x","parameters":{{"{field}":{value}}}}}')
    assert status == 422
    assert f"`parameters.{field}" in json.loads(text)["error"]


def test_null_and_whole_numbers_are_accepted_where_allowed(post):
    optional = ("best_of", "temperature", "repetition_penalty", "frequency_penalty", "top_k", "top_p", "typical_p",
                "max_new_tokens", "return_full_text", "truncate", "seed", "top_n_tokens", "grammar", "adapter_id")
    assert post("/generate", inputs="x", parameters=dict.fromkeys(optional))[0] == 200
    assert post("/generate", inputs="x", parameters={"temperature": 2})[0] == 200


def test_unknown_fields_are_ignored(post):
    assert post("/generate", inputs="x", stream=True, parameters={"min_p": 0.1})[0] == 200


def test_only_the_first_unknown_fields_are_looked_at(monkeypatch):
    """Regression: their names were made for each of thousands of messages, on the event loop."""
    refuses, looked_at = LenientBodyModel._refuses, []

    def record_name(model, name):
        looked_at.append(name)
        return refuses(model, name)
    monkeypatch.setattr(LenientBodyModel, "_refuses", record_name)
    message = {"role": "user", "content": "x", **{f"x{index}": 1 for index in range(5)}}
    chat = ChatRequest.model_validate({"messages": [message] * 4000, "suffix_": 1, "echo": True})
    unknown_fields = chat.find_unknown_fields()
    assert unknown_fields.ignored == ["suffix_", *(f"messages.0.x{index}" for index in range(5)),
                                      *(f"messages.1.x{index}" for index in range(3))]
    assert unknown_fields.refused == ["echo"]
    assert len(looked_at) == 12


@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
def test_unknown_fields_of_a_large_body_are_found_once_in_a_thread(post, monkeypatch, compat):
    find_unknown_fields, threads = ChatRequest.find_unknown_fields, []

    def record_thread(model):
        threads.append(threading.current_thread())
        return find_unknown_fields(model)
    monkeypatch.setattr(ChatRequest, "find_unknown_fields", record_thread)
    refused_fields = {} if compat == "none" else {"logits_processors": [1]}
    headers = post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1,
                   unknown=[1] * 5000, **refused_fields, config=RouterConfig(compat=compat))[1]
    assert headers["x-ignored-fields"] == "unknown" + ", logits_processors" * (compat != "none")
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_long_names_of_unknown_fields_are_cut_before_they_are_written(monkeypatch):
    """Regression: each character of a name of megabytes was looked at, and the name was cut afterwards."""
    lengths = []

    class RecordingPattern:
        def sub(self, replacement, name):
            lengths.append(len(name))
            return UNUSUAL_NAME_CHARACTERS.sub(replacement, name)
    monkeypatch.setattr(body, "UNUSUAL_NAME_CHARACTERS", RecordingPattern())
    assert format_field_names(["x", " " * 2_000_000]) == f"x, {'?' * MAX_FIELD_NAME_LENGTH}"
    assert lengths == [1, MAX_FIELD_NAME_LENGTH]


def test_error_does_not_repeat_the_body(post):
    _, _, text = post("/generate", data=b'{"inputs":"x","parameters":{"stop":[%b1]}}' % (b"1," * 200_000))
    assert len(text) < 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "json", "application/jsonp",
                                  "x;a*", "application/json;t*"])  # the last two break the parser of `email`
def test_other_media_types_are_rejected(post, kind):
    status, _, text = post("/generate", data='{"inputs":"x"}', headers={"Content-Type": kind})
    assert status == 415
    assert json.loads(text)["error_type"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON",
                                  "application/vnd.loom+json"])
def test_json_media_types_are_accepted(post, kind):
    assert post("/generate", data='{"inputs":"x"}', headers={"Content-Type": kind})[0] == 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_web_page_cannot_send_another_media_type_than_json(post, kind):
    """Browsers send these without asking the server first. Clients of Ollama send them, too, but no origin."""
    body = '{"model":"weft","prompt":"x","stream":false}'
    assert post("/api/generate", data=body, headers={"Content-Type": kind})[0] == 200
    page_headers = {"Content-Type": kind, "Origin": "http://evil.example"}
    assert post("/api/generate", data=body, headers=page_headers)[0] == 415


def test_body_of_exactly_the_size_limit_is_accepted(post):
    body = json.dumps({"inputs": "x"}).ljust(100)
    assert post("/generate", data=body, config=RouterConfig(payload_limit=100))[0] == 200
    assert post("/generate", data=body + " ", config=RouterConfig(payload_limit=100))[0] == 413


@pytest.mark.parametrize("chunked", [False, True])
def test_oversized_body_is_rejected_and_the_next_request_works(serve, chunked):
    async def scenario(client, engine):
        async def chunks():
            for _ in range(10):
                yield b" " * 1_000_000
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/generate", data=chunks() if chunked else io.BytesIO(b" " * 10**7), headers=headers)
        assert answer.status == 413
        assert "--payload-limit" in (await answer.json())["error"]
        assert (await client.post("/generate", json={"inputs": "x"})).status == 200
    serve(scenario)


def test_disconnect_within_a_body_does_not_affect_other_requests(serve, caplog):
    async def scenario(client, engine):
        _, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await client.post("/generate", json={"inputs": "x"})).status == 200
    serve(scenario)
    assert not caplog.records


def test_broken_chunked_framing_is_rejected(serve):
    async def scenario(client, engine):
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nzz\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
    serve(scenario)


BODY_JSON = json.dumps({"inputs": "a loom"}).encode()
RAW_DEFLATE = zlib.compressobj(wbits=-15)
ENCODED_BODIES = {
    "gzip": gzip.compress(BODY_JSON),
    "x-gzip": gzip.compress(BODY_JSON),
    "GZIP": gzip.compress(BODY_JSON),
    "deflate": zlib.compress(BODY_JSON),
    "Deflate": RAW_DEFLATE.compress(BODY_JSON) + RAW_DEFLATE.flush(),  # without zlib's header
    "identity": BODY_JSON,
}


def post_encoded(post, encoding, data, path="/generate", **config):
    status, _, text = post(path, data=data, headers={"Content-Encoding": encoding}, config=RouterConfig(**config))
    return status, json.loads(text)


@pytest.mark.parametrize("encoding", ENCODED_BODIES)
def test_compressed_body_is_accepted(post, encoding):
    assert post_encoded(post, encoding, ENCODED_BODIES[encoding]) == (200, {"generated_text": "weft"})


def test_body_that_is_read_twice_is_decompressed_once(post):
    assert post_encoded(post, "gzip", ENCODED_BODIES["gzip"], "/invocations")[0] == 200


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, identity", "", "*"])
def test_unsupported_encoding_is_rejected(post, encoding):
    status, response = post_encoded(post, encoding, BODY_JSON)
    assert (status, response["error_type"]) == (415, "unsupported_media_type")
    assert response["error"] == f"Content-Encoding must be gzip, deflate or identity, got {encoding!r}"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("damage", [
    lambda body: b"", lambda body: body[:3], lambda body: body[:-1], lambda body: body[:-9], lambda body: body + b"x",
    lambda body: body + body, lambda _: BODY_JSON])
def test_corrupt_or_truncated_body_is_rejected(post, encoding, damage):
    status, response = post_encoded(post, encoding, damage(ENCODED_BODIES[encoding]))
    assert (status, response["error_type"]) == (400, "bad_request")
    assert response["error"] == f"the body is not whole, or not in its Content-Encoding, {encoding}"


def test_size_limit_applies_after_decompression(post):
    body = gzip.compress(BODY_JSON.ljust(100_000))
    assert post_encoded(post, "gzip", body, payload_limit=100_000)[0] == 200
    status, response = post_encoded(post, "gzip", body, payload_limit=99_999)
    assert (status, response["error_type"]) == (413, "payload_too_large")
    assert response["error"] == "the body must have at most 99999 bytes once decompressed (--payload-limit)"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_oversized_encoded_body_is_not_reported_as_decompressed(post, encoding):
    status, response = post_encoded(post, encoding, bytes(100_000), payload_limit=99_999)
    assert status == 413
    assert response["error"] == "the body must have at most 99999 bytes (--payload-limit)"


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 40 * SLICE_BYTES])
@pytest.mark.parametrize("window", [31, 15, -15])
def test_decompressed_slices_are_bounded_and_complete(size, window):
    compressor = zlib.compressobj(wbits=window)
    content = bytes(size)
    pieces = [*decompress_in_slices(compressor.compress(content) + compressor.flush(), window)]
    assert b"".join(pieces) == content
    assert all(len(piece) <= SLICE_BYTES for piece in pieces)


def test_incompressible_data_is_decompressed_in_slices():
    content = b"".join(bytes([seed * index % 251 for index in range(1, 8_000)]) for seed in range(1, 60))
    assert b"".join(decompress_in_slices(zlib.compress(content, 0), 15)) == content


def test_decompression_yields_to_other_tasks():
    async def main():
        turns = 0

        async def count_turns():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)
        task = asyncio.create_task(count_turns())
        await decompress(gzip.compress(bytes(20 * SLICE_BYTES)), "gzip", 20 * SLICE_BYTES)
        task.cancel()
        return turns
    assert asyncio.run(main()) >= 20


# ---------------------------------------------------------------------------------------------------------------------
# Numbers of values

BODY_MODELS = {model.__name__: model for section in ROUTE_SECTIONS.values() for entry in section
               for model in entry.body_models}
LARGE_VALUES = {
    "empty objects": b"{}", "empty lists": b"[]", "texts": b'"x"', "nested lists": b"[[[]]]",
    "objects": b'{"role":"user","content":"x"}', "names": b'{"name":1}',
}


@pytest.mark.parametrize("name", BODY_MODELS)
def test_no_field_takes_a_hundred_thousand_entries(monkeypatch, name):
    """65,000 instances, 10,000 tools and 100,000 adapters took up to three seconds of the event loop. Now no object
    is made of such a body."""
    validated = []
    model = BODY_MODELS[name]
    monkeypatch.setattr(model, "model_validate_json", validated.append)
    fields = [field.alias or field_name for field_name, field in model.model_fields.items()]
    for field in [*fields, "unknown"]:
        for entry in LARGE_VALUES.values():
            content = b'{"%b":[%b]}' % (field.encode(), b",".join([entry] * 5000))
            with pytest.raises(BodyValidationError) as failed:
                parse_large_body(content, model)
            assert re.fullmatch(rf"`{field}` must have at most \d+ entries, got 5000", failed.value.fault)
    assert not validated


def iterate_unbounded_lists(schema, path=()):
    """Yield the places of lists in pydantic's schema that report every invalid entry."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "set") and "items_schema" in schema and not schema.get("fail_fast"):
            yield path
        for name, part in schema.items():
            if name not in ("metadata", "json_schema_input_schema"):  # of which only the documentation is made
                yield from iterate_unbounded_lists(part, (*path, name))
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from iterate_unbounded_lists(part, path)


@pytest.mark.parametrize("name", BODY_MODELS)
def test_invalid_list_is_one_error(name):
    """520,000 numbers as `tools` were as many errors, and stopped the event loop for seconds."""
    assert not [*iterate_unbounded_lists(BODY_MODELS[name].__pydantic_core_schema__)]


@pytest.mark.parametrize(("content", "fault"), [
    (b'{"x":[%b]}' % b",".join([b"{}"] * MAX_CONTAINERS),
     f"the body must hold at most {MAX_CONTAINERS} lists and objects, got {MAX_CONTAINERS + 2}"),
    (b"[%b]" % b",".join([b'"x"'] * (MAX_STRINGS + 1)), f"the body must hold at most {MAX_STRINGS} strings"),
    (b"[%b]" % b",".join([b"1"] * (MAX_VALUES + 1)), f"the body must hold at most {MAX_VALUES} values"),
    (b'{"x":{%b}}' % b",".join(b'"%d":1' % number for number in range(MAX_ENTRIES + 1)),
     f"`x` must have at most {MAX_ENTRIES} entries, got {MAX_ENTRIES + 1}"),
    (b'{"x":[1,%b]}' % b",".join([b"null"] * MAX_ENTRIES), f"`x` must have at most {MAX_ENTRIES} entries"),
    (b'{"a":[0,{"tools":[%b]}]}' % b",".join([b"{}"] * 1025), "`a.1.tools` must have at most 1024 entries, got 1025"),
    (b'{"x":{"enum":[%b]}}' % b",".join([b"null"] * 65_537), "`x.enum` must have at most 65536 entries, got 65537"),
])
def test_error_about_too_many_values_names_field_limit_and_value(content, fault):
    with pytest.raises(BodyValidationError) as failed:
        check_num_values(content)
    assert failed.value.fault.startswith(fault)


@pytest.mark.parametrize("content", [
    json.dumps({"x": '[{"a":1,\\'  * 100_000}).encode(), json.dumps({"x": [7] * 100_000}).encode(),
    json.dumps({"x": ["\\", '"', ",[" * 9000] * 1000}).encode(), b'{"x":[' + b"[" * 5000,
    json.dumps({"tools": [{"properties": {"tools": {"enum": ["x"] * 5000, "tools": [""] * 2000}}}]}).encode(),
], ids=["punctuation in texts", "numbers", "escaped characters", "no JSON", "schema"])
def test_long_texts_enumerations_and_lists_of_numbers_are_accepted(content):
    check_num_values(content)


def test_large_body_is_read_in_a_thread(post, monkeypatch):
    threads = []

    def record_thread(content):
        threads.append(threading.current_thread())

    monkeypatch.setattr(body, "check_num_values", record_thread)
    for num_unknown in (10, 5000):
        assert post("/generate", inputs="x", parameters={"max_new_tokens": 1}, unknown=[1] * num_unknown)[0] == 200
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_tenants_take_turns_with_their_long_bodies_in_few_threads(serve, monkeypatch, tmp_path):
    """Regression: each long body was read in a thread of its own, up to 32 at once, or waited behind all those of
    another tenant."""
    (tmp_path / "keys").write_text('{"a": {"tenant": "a"}, "b": {"tenant": "b"}}')
    may_end, num_running, most_running, order = threading.Event(), 0, 0, []
    lock, check = threading.Lock(), body.check_num_values

    def check_num_values(content):
        nonlocal num_running, most_running
        with lock:
            num_running += 1
            most_running = max(most_running, num_running)
        may_end.wait()
        check(content)
        with lock:
            num_running -= 1
            order.append(b"few" in content)

    async def scenario(client, _):
        def post(key, name):
            return asyncio.create_task(client.post(
                "/generate", json={"inputs": name, "parameters": {"max_new_tokens": 1}, "unknown": [1] * 5000},
                headers={"Authorization": f"Bearer {key}"}))
        answers, num_pending = [], client.app[LONG_BODY_THREADS]._semaphore._num_pending
        try:
            for key, name, number in (("a", "many", 6 * NUM_LONG_BODY_THREADS), ("b", "few", 1)):
                answers += [post(key, name) for _ in range(number)]
                for _ in range(2000):
                    if num_pending[key] == number:
                        break
                    await asyncio.sleep(0.001)
        finally:
            may_end.set()
        assert {answer.status for answer in await asyncio.gather(*answers)} == {200}

    monkeypatch.setattr(body, "check_num_values", check_num_values)
    serve(scenario, config=RouterConfig(api_keys=str(tmp_path / "keys")))
    assert most_running == NUM_LONG_BODY_THREADS
    assert order.index(True) <= 2 * NUM_LONG_BODY_THREADS


LONG_CHAT = {"messages": [{"role": "user", "content": "hi"}], "user": "x" * MAX_INLINE_BYTES}
TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": {"type": "object", "properties": {}}}}]
SELECT_TOOLS = "router.http.openai.requests.select_template_tools"


@pytest.mark.parametrize(("converter", "path", "fields"), [
    ("router.http.anthropic.requests.AnthropicCountTokensRequest.to_chat_request", "/v1/messages/count_tokens",
     LONG_CHAT | {"model": "weft"}),
    (SELECT_TOOLS, "/tokenize", LONG_CHAT | {"tools": TOOLS}),
    (SELECT_TOOLS, "/chat_tokenize", LONG_CHAT | {"tools": TOOLS}),
    (SELECT_TOOLS, "/v1/chat/completions", LONG_CHAT | {"tools": TOOLS, "n": 3}),
    ("router.http.openai.responses.ResponsesRequest.echoed_fields", "/v1/responses",
     {"input": "hi", "user": "x" * MAX_INLINE_BYTES}),
    ("router.http.openai.completions.CompletionRequest.completion_details", "/v1/completions",
     {"prompt": [97], "echo": True, "user": "x" * MAX_INLINE_BYTES}),
    ("router.http.lorax.routes.LoraxChatRequest.to_normalized_request", "/v1/chat/completions", LONG_CHAT),
    ("router.http.lorax.routes.LoraxChatRequest._find_grammar", "/v1/chat/completions", LONG_CHAT),
])
def test_long_body_is_converted_once_and_in_a_thread(post, monkeypatch, converter, path, fields):
    """Regression: these routes did it on the event loop, and a chat for each of its choices."""
    compat = "lorax" if "lorax" in converter else "none"
    threads, convert = [], pkgutil.resolve_name(converter)

    def convert_and_record_thread(*arguments):
        threads.append(threading.current_thread().name)
        return convert(*arguments)
    monkeypatch.setattr(converter, convert_and_record_thread)
    status, _, text = post(path, config=RouterConfig(compat=compat), **fields)
    assert status == 200, text
    assert [name.partition("_")[0] for name in threads] == ["bodies"]


@pytest.mark.parametrize("compat", ["none", "lorax"])
@pytest.mark.parametrize(("num_prompt_tokens", "is_inline"), [(20, True), (200, False)])
def test_details_of_a_long_prompt_are_rendered_in_a_thread(post, monkeypatch, compat, num_prompt_tokens, is_inline):
    """Regression: they were rendered on the event loop, some microseconds for each token."""
    threads = []

    def render_and_record_thread(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return choice_fields(*arguments)
    monkeypatch.setattr("router.http.tgi.rendering.choice_fields", render_and_record_thread)
    status, _, text = post("/generate", inputs="x" * num_prompt_tokens, config=RouterConfig(compat=compat),
                           parameters={"decoder_input_details": True})
    assert (status, len(json.loads(text)["details"]["prefill"]), threads) == (200, num_prompt_tokens, [is_inline])


@pytest.mark.parametrize(("path", "fields"), [
    ("/generate", {"inputs": "x", "parameters": {"details": True}}), ("/", {"inputs": "x"}),
    ("/v1/completions", {"prompt": ["a", "b"]}), ("/v1/chat/completions", LONG_CHAT | {"return_token_ids": True}),
    ("/v1/embeddings", {"input": ["a", "b"]}), ("/api/embed", {"input": ["a", "b"], "model": "loom"})])
def test_long_answer_is_sent_in_pieces(serve, monkeypatch, path, fields):
    """Regression: it was joined, encoded and sent at once on the event loop, 128 ms for 26 MB of embeddings."""
    async def read_answer(client, _):
        answer = await client.post(path, json=fields)
        text = await answer.text()
        assert (answer.status, int(answer.headers["Content-Length"])) == (200, len(text))
        assert answer.content_type == "application/json"
        return re.sub(r'"(id|created|total_duration)": ?("[^"]*"|[0-9]+)', "", text)

    def refuse_to_join(_):
        pytest.fail("a long answer is never joined")
    facts = {"embeddings": True, "generation": False} if "embed" in path else {}
    whole = serve(read_answer, **facts)
    monkeypatch.setattr(body, "MAX_JOINED_BYTES", 10)
    monkeypatch.setattr(body, "MAX_WRITE_BYTES", 7)
    monkeypatch.setattr(ListJson, "text", property(refuse_to_join))
    assert serve(read_answer, **facts) == whole


@example("[[[[", ["aaa", "", "aaaaaaaa"], "")  # an empty item adds a comma
@given(st.text("[{", max_size=30), st.lists(st.text("abc", max_size=30)), st.text("]}", max_size=30))
def test_pieces_of_an_answer_are_its_whole_text(opening, items, closing):
    answer = ListJson(opening, items, closing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "MAX_WRITE_BYTES", 8)
        pieces = [*answer.iterate_pieces()]
    assert b"".join(pieces).decode() == answer.text
    assert answer.num_bytes == len(answer.text)
    longest = max(2 * 8, len(opening) + 8, len(closing) + 8) if items else len(opening) + len(closing)
    assert max(map(len, pieces)) <= longest


def test_body_that_is_no_gzip_is_an_error_of_the_client_without_a_traceback(post, caplog):
    status, response = post_encoded(post, "gzip", b"no gzip at all")
    assert (status, response["error"]) == (400, "the body is not whole, or not in its Content-Encoding, gzip")
    assert not [record for record in caplog.records if record.exc_info]
