"""Ollama's chats, generations and embeddings over a scripted engine."""

import json

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import GenerationFailed, Overloaded
from router.request import FinishReason
from router.text.chat_template import ChatTemplate

CHAT_PATH, GENERATE_PATH = "/api/chat", "/api/generate"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES = {CHAT_PATH: {"model": "loom", "messages": MESSAGES}, GENERATE_PATH: {"model": "loom", "prompt": "hi"}}
PAINT_TOOL = {"type": "function", "function": {"name": "paint", "parameters": {"type": "object"}}}
TOOL_TEMPLATE = ChatTemplate("{{ tools | tojson }}{{ messages | tojson }}<tool_call>", {})
THINKING_TEMPLATE = ChatTemplate("{{ enable_thinking }} {{ reasoning_effort }}<tool_call><think></think>", {})
DURATIONS = {"load_duration": 250_000_000, "prompt_eval_duration": 125_000_000, "eval_duration": 375_000_000}
WEFT_END = {"done": True, "done_reason": "length", "eval_count": 4, **DURATIONS}


def make_end_script(text):
    return [TokenEvent(97, text, -1.0, False), TokenEvent(256, "<|im_end|>", -0.5, True),
            FinishedEvent(FinishReason.END_TOKEN, text, 2, make_finished_timeline())]


CALL_SCRIPT = make_end_script('<tool_call>{"name": "paint", "arguments": {"colour": "r\u00f6t"}}</tool_call>')
THINKING_SCRIPT = make_end_script("<think>\nhm\n</think>\n\nyes")


def post_whole(post, path, *scripts, **fields):
    status, headers, text = post(path, *scripts, **{**BODIES[path], "stream": False, **fields})
    assert (status, headers["Content-Type"]) == (200, "application/json"), text
    assert text.isascii()
    return json.loads(text)


def post_stream(post, path, *scripts, **fields):
    status, headers, text = post(path, *scripts, **{**BODIES[path], **fields})
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson"), text
    assert text.endswith("\n")
    assert text.isascii()
    return [json.loads(line) for line in text.splitlines()]


def post_error(post, path, **fields):
    status, headers, text = post(path, **{**BODIES[path], **fields})
    error = json.loads(text)
    assert ([*error], headers["Content-Type"]) == (["error"], "application/json")
    return status, error["error"]


def post_and_get_requests(serve, path, *bodies, **serve_options):
    """Post the bodies and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post(path, json=BODIES[path] | body)
            assert answer.status == 200, await answer.text()
        return engine.requests
    return serve(scenario, **serve_options)


def drop_times(answer):
    """Check the fields that differ between answers, and leave them out."""
    assert answer["created_at"][:2] == "20"
    assert answer["created_at"].endswith("Z")
    assert answer.get("total_duration", 1) > 0
    return {name: value for name, value in answer.items() if name not in {"created_at", "total_duration"}}


# ---------------------------------------------------------------------------------------------------------------------
# Answers


def test_whole_chat_has_the_message_and_durations(post):
    assert drop_times(post_whole(post, CHAT_PATH)) == {
        "model": "loom", "message": {"role": "assistant", "content": "weft"}, "prompt_eval_count": 20, **WEFT_END}


def test_whole_generation_has_the_response_and_durations(post):
    assert drop_times(post_whole(post, GENERATE_PATH)) == {
        "model": "loom", "response": "weft", "prompt_eval_count": 20, **WEFT_END}


def test_stream_is_the_default_and_has_a_line_per_piece(post):
    *pieces, end = map(drop_times, post_stream(post, CHAT_PATH))
    assert pieces == [{"model": "loom", "message": {"role": "assistant", "content": letter}, "done": False}
                      for letter in "weft"]
    assert end == {"model": "loom", "message": {"role": "assistant", "content": ""}, "prompt_eval_count": 20,
                   **WEFT_END}
    *pieces, end = map(drop_times, post_stream(post, GENERATE_PATH))
    assert [piece["response"] for piece in [*pieces, end]] == [*"weft", ""]


def test_headers_report_times_and_ignored_fields(post):
    ignored = {"keep_alive": "5m", "options": {"num_ctx": 4096, "seed": 1, "numa": True}}
    for fields in ({"stream": False}, {}):
        status, headers, _ = post(CHAT_PATH, **BODIES[CHAT_PATH], **fields, **ignored)
        assert (status, headers["x-ignored-fields"]) == (200, "keep_alive, options.num_ctx, options.numa")
        assert (headers["x-compute-characters"], "x-request-id" in headers) == ("20", True)
        assert ("x-queue-ms" in headers) == bool(fields)


def test_reasoning_is_set_apart(post):
    fields = {"template": THINKING_TEMPLATE, "think": True}
    message = post_whole(post, CHAT_PATH, THINKING_SCRIPT, **fields)["message"]
    assert message == {"role": "assistant", "content": "yes", "thinking": "hm"}
    pieces = [line["message"] for line in post_stream(post, CHAT_PATH, THINKING_SCRIPT, **fields)]
    assert [piece.get("thinking") for piece in pieces if piece.get("thinking")] == ["hm"]
    assert "".join(piece["content"] for piece in pieces) == "yes"
    status, _, text = post(GENERATE_PATH, THINKING_SCRIPT, data=json.dumps({**BODIES[GENERATE_PATH], "stream": False}),
                           template=THINKING_TEMPLATE)
    assert (status, json.loads(text)["response"], json.loads(text)["thinking"]) == (200, "yes", "hm")


def test_call_comes_whole_with_an_object_of_arguments(post):
    fields = {"tools": [PAINT_TOOL], "template": TOOL_TEMPLATE}
    expected = [{"function": {"index": 0, "name": "paint", "arguments": {"colour": "r\u00f6t"}}}]
    answer = post_whole(post, CHAT_PATH, CALL_SCRIPT, **fields)
    assert answer["message"] == {"role": "assistant", "content": "", "tool_calls": expected}
    first, end = post_stream(post, CHAT_PATH, CALL_SCRIPT, **fields)
    assert first["message"] == answer["message"]
    assert (answer["done_reason"], end["done_reason"], first["done"]) == ("stop", "stop", False)


@pytest.mark.parametrize("fields", [{"logprobs": True, "top_logprobs": 1}, {"top_logprobs": 1}])
def test_logprobs_are_returned_for_every_token(post, fields):
    script = [TokenEvent(300, "we", -1.0, False, (TopToken(300, "we", -1.0, False),)), *make_end_script("we")[1:]]
    expected = [{"token": "we", "logprob": -1.0, "bytes": [119, 101], "top_logprobs": [
                    {"token": "we", "logprob": -1.0, "bytes": [119, 101]}]},
                {"token": "<|im_end|>", "logprob": -0.5, "bytes": [*b"<|im_end|>"], "top_logprobs": []}]
    assert post_whole(post, CHAT_PATH, script, **fields)["logprobs"] == expected
    lines = post_stream(post, CHAT_PATH, script, **fields)
    assert [entry for line in lines for entry in line.get("logprobs", ())] == expected
    assert "logprobs" not in post_whole(post, CHAT_PATH, script)


def test_stop_string_is_left_out(post):
    script = make_text_events("ab.", FinishReason.STOP_STRING)
    for path, read in ((CHAT_PATH, lambda line: line["message"]["content"]),
                       (GENERATE_PATH, lambda line: line["response"])):
        assert read(post_whole(post, path, script, options={"stop": ["."]})) == "ab"
        lines = post_stream(post, path, script, options={"stop": ["."]})
        assert ("".join(map(read, lines)), lines[-1]["done_reason"]) == ("ab", "stop")


@pytest.mark.parametrize("path", BODIES)
def test_failure_in_a_stream_is_its_last_line(post, path):
    script = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
    first, last = post_stream(post, path, script)
    assert (first["done"], last) == (False, {"error": "Request failed during generation: broken"})


@pytest.mark.parametrize("stream", [False, True])
def test_full_server_answers_with_the_status(serve, stream):
    async def scenario(client, engine):
        engine.submit_errors = [Overloaded("full")]
        answer = await client.post(CHAT_PATH, json=BODIES[CHAT_PATH] | {"stream": stream})
        assert (answer.status, await answer.json()) == (429, {"error": "Model is overloaded: full"})
    serve(scenario)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def test_options_reach_the_request(serve):
    options = {"num_predict": 9, "temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.25, "seed": 7, "stop": ["."],
               "repeat_penalty": 2, "presence_penalty": -0.25, "frequency_penalty": 0.25, "typical_p": 1.0, "tfs_z": 1,
               "mirostat": 0}
    for path in BODIES:
        [request] = post_and_get_requests(serve, path, {"options": options})
        sampling = request.sampling
        assert (request.max_new_tokens, request.stop_strings) == (9, (".",))
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 3, 0.75, 0.25)
        assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (2, -0.25, 0.25)


def test_seed_gives_the_same_sampling_key_as_other_dialects(serve):
    async def scenario(client, engine):
        await client.post(CHAT_PATH, json=BODIES[CHAT_PATH] | {"options": {"seed": 7}})
        await client.post("/v1/chat/completions", json={"messages": MESSAGES, "seed": 7})
        first, second = engine.requests
        assert (first.sampling_key, first.prompt, first.sampling) == (second.sampling_key, second.prompt,
                                                                      second.sampling)
    serve(scenario)


@pytest.mark.parametrize("options", [{"num_predict": -1}, {"num_predict": -2}, {"num_predict": 0}, {"seed": -1}, {}])
def test_values_that_mean_none_are_as_not_given(serve, options):
    bare, given = post_and_get_requests(serve, CHAT_PATH, {}, {
        "options": options, "format": "", "tools": [], "think": False, "logprobs": False})
    assert (given.max_new_tokens, given.sampling, given.grammar) == (bare.max_new_tokens, bare.sampling, None)


def test_fields_of_messages_reach_the_template(serve):
    call = {"id": "1", "function": {"index": 0, "name": "paint", "arguments": {"colour": "red"}}}
    [request] = post_and_get_requests(serve, CHAT_PATH, {"messages": [
        *MESSAGES, {"role": "assistant", "thinking": "hm", "tool_calls": [call], "images": []},
        {"role": "tool", "content": "5", "tool_name": "paint", "tool_call_id": "1"}]},
        template=ChatTemplate("{{ messages | tojson }}", {}))
    [_, answer, result] = json.loads(bytes(request.prompt))
    assert answer == {"role": "assistant", "content": "", "thinking": "hm", "reasoning_content": "hm", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "paint", "arguments": {"colour": "red"}}}]}
    assert result == {"role": "tool", "content": "5", "name": "paint", "tool_call_id": "1"}


def test_tools_reach_the_template(serve):
    [request] = post_and_get_requests(serve, CHAT_PATH, {"tools": [PAINT_TOOL]}, template=TOOL_TEMPLATE)
    assert json.JSONDecoder().raw_decode(bytes(request.prompt).decode())[0] == [PAINT_TOOL]


@pytest.mark.parametrize(("think", "prompt"), [(None, " "), (False, "False "), (True, "True "), ("high", "True high")])
def test_think_reaches_the_template(serve, think, prompt):
    for path in BODIES:
        [request] = post_and_get_requests(serve, path, {"think": think}, template=THINKING_TEMPLATE)
        assert bytes(request.prompt).decode() == f"{prompt}<tool_call><think></think>"


@pytest.mark.parametrize(("body", "template", "prompt"), [
    ({}, "given", "user: hi\nassistant: "), ({"system": "be"}, "given", "system: be\nuser: hi\nassistant: "),
    ({"raw": True}, "given", "hi"), ({}, None, "hi"), ({"raw": True, "suffix": "", "template": "", "context": []},
                                                       None, "hi")])
def test_prompt_of_a_generation_is_a_chat_unless_it_is_raw(serve, body, template, prompt):
    options = {} if template else {"template": None}
    [request] = post_and_get_requests(serve, GENERATE_PATH, body, **options)
    assert bytes(request.prompt).decode() == prompt


@pytest.mark.parametrize(("prompt", "bytes_before"), [("hi", b"hi"), (None, b"")])
@pytest.mark.parametrize("raw", [False, True])
def test_suffix_stands_behind_the_place_to_fill(serve, infill_tokenizer, prompt, bytes_before, raw):
    [request] = post_and_get_requests(serve, GENERATE_PATH, {"prompt": prompt, "suffix": "ho", "raw": raw},
                                      tokenizer=infill_tokenizer)
    assert request.prompt == (257, *bytes_before, 258, *b"ho", 259)
    assert request.end_tokens == {256, 257, 258, 259, 260}


@pytest.mark.parametrize("answer_format", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
def test_format_becomes_a_grammar(serve, answer_format):
    for path, extra in ((CHAT_PATH, {}), (GENERATE_PATH, {}), (GENERATE_PATH, {"raw": True})):
        [request] = post_and_get_requests(serve, path, {"format": answer_format, **extra}, grammars=True)
        assert request.grammar is not None


def test_empty_prompt_only_loads_the_model(serve):
    async def scenario(client, engine):
        for path, body in BODIES.items():
            answer = await client.post(path, json={"model": "loom"})
            assert drop_times(await answer.json()) == {
                "model": "loom", **({"response": ""} if path == GENERATE_PATH else
                                    {"message": {"role": "assistant", "content": ""}}),
                "done": True, "done_reason": "load"}
            assert answer.content_type == "application/json"
            assert body
        assert not engine.requests
    serve(scenario)


@pytest.mark.parametrize("compat", ["tgi", "lorax"])
def test_compatibility_with_another_server_changes_nothing(serve, post, compat):
    config = RouterConfig(compat=compat)
    [request] = post_and_get_requests(serve, CHAT_PATH, {"options": {"presence_penalty": -0.5}}, config=config)
    assert (request.sampling.repetition_penalty, request.sampling.presence_penalty) == (0, -0.5)
    status, error = post_error(post, CHAT_PATH, options={"top_p": 2}, config=config)
    assert (status, error) == (400, "`top_p` must be above 0 and below 1, got 2.0; leave it out to keep all candidates")


# ---------------------------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize(("model", "adapter"), [
    ("loom", None), ("loom:latest", None), ("a", "a"), ("a:latest", "a"), ("mine", "a")])
@pytest.mark.parametrize("path", BODIES)
def test_model_may_be_an_adapter_with_or_without_a_tag(post, path, model, adapter):
    config = RouterConfig(preloaded_adapter_ids=("mine=a",))
    for fields in ({"stream": False}, {}):
        status, headers, text = post(path, **{**BODIES[path], "model": model, **fields}, store=FakeAdapterStore(),
                                     config=config)
        assert (status, headers.get("x-adapter-id")) == (200, adapter)
        assert {json.loads(line)["model"] for line in text.splitlines()} == {model}


@pytest.mark.parametrize(("path", "body"), [*BODIES.items(), (CHAT_PATH, {}), (GENERATE_PATH, {})])
def test_unknown_model_is_not_found_in_the_words_of_ollama(post, path, body):
    status, _, text = post(path, **body | {"model": "c:latest"}, store=FakeAdapterStore())
    assert status == 404
    assert json.loads(text)["error"].startswith("model 'c:latest' not found: ")


def test_any_model_means_the_served_one_without_adapters(post):
    assert post_whole(post, CHAT_PATH, model="whatever")["model"] == "whatever"


# ---------------------------------------------------------------------------------------------------------------------
# Refusals

IMAGE_MESSAGES = [{"role": "user", "content": "hi", "images": ["aGk="]}]
REFUSALS = {
    "image": (CHAT_PATH, {"messages": IMAGE_MESSAGES}, "`images` is given, but images are not served; leave it out"),
    "image of a prompt": (GENERATE_PATH, {"images": ["aGk="]},
                          "`images` is given, but images are not served; leave it out"),
    "suffix": (GENERATE_PATH, {"suffix": "x"}, "`suffix` is given, but this model does not support insert: its"),
    "suffix with a system prompt": (GENERATE_PATH, {"suffix": "x", "system": "x"}, "`system` is given, but the prompt"),
    "tokens to go on behind": (CHAT_PATH, {"resume_token_ids": [97]}, "`resume_token_ids` is given, but this server"),
    "tokens of a prompt": (GENERATE_PATH, {"resume_token_ids": [97]}, "`resume_token_ids` is given, but this server"),
    "tokens as an option": (GENERATE_PATH, {"options": {"resume_token_ids": [97]}},
                            "`options.resume_token_ids` is given, but this server"),
    "template": (GENERATE_PATH, {"template": "x"},
                 "`template` is given, but the model's own template makes the prompt; leave it out"),
    "context": (GENERATE_PATH, {"context": [1]},
                "`context` is given, but earlier turns are only taken as text, by /api/chat; leave it out"),
    "raw with a system prompt": (GENERATE_PATH, {"raw": True, "system": "x"}, "`system` is given, but the prompt goes"),
    "raw with reasoning": (GENERATE_PATH, {"raw": True, "think": True}, "`think` is given, but the prompt goes"),
    "system prompt without a template": (GENERATE_PATH, {"system": "x", "template": None},
                                         "`system` is given, but the prompt goes to the model as it is"),
    "reasoning": (CHAT_PATH, {"think": "low"},
                  "`think` is given, but this model does not set reasoning apart; leave it out"),
    "format that is no schema": (CHAT_PATH, {"format": "yaml"}, "`format."),
    "format with an unknown keyword": (CHAT_PATH, {"format": {"properties": {"a": {"extends": {}}}}},
                                       "`format.properties.a.extends` is not supported"),
    "format without grammars": (CHAT_PATH, {"format": "json"}, "`format` is given, but this model is served without"),
    "typical_p": (CHAT_PATH, {"options": {"typical_p": 0.5}}, "`typical_p` must be 1, which keeps all candidates, got"),
    "tfs_z": (CHAT_PATH, {"options": {"tfs_z": 0.5}}, "`tfs_z` must be 1, which keeps all candidates, got 0.5"),
    "mirostat": (CHAT_PATH, {"options": {"mirostat": 2}}, "`mirostat` must be 0, got 2"),
    "temperature": (CHAT_PATH, {"options": {"temperature": -1}}, "`temperature` must be at least 0, got -1.0"),
    "repeat_penalty": (CHAT_PATH, {"options": {"repeat_penalty": 0}}, "`repeat_penalty` must be above 0, got 0.0"),
    "option of another type": (CHAT_PATH, {"options": {"seed": "x"}},
                               "`options.seed` must be an integer, got"),
    "num_predict": (GENERATE_PATH, {"prompt": "x" * 1000, "options": {"num_predict": 1000}, "raw": True},
                    "the prompt is too long: `prompt` (1000 tokens) and `num_predict` (1000) must be at most 1600"),
    "long messages": (CHAT_PATH, {"messages": [{"role": "user", "content": "x" * 2000}]},
                      "the prompt is too long: `messages` must have at most 1599 tokens"),
    "logprobs": (CHAT_PATH, {"top_logprobs": 21}, "`top_logprobs` must be at most 20 (--max-top-n-tokens), got 21"),
    "no model": (CHAT_PATH, {"model": ""}, "`model` must have at least 1 character, got 0"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusal_names_the_field(serve, path, fields, message, stream):
    options = {"template": None} if fields.get("template", "") is None else {}

    async def scenario(client, engine):
        answer = await client.post(path, json=BODIES[path] | fields | {"stream": stream})
        error = await answer.json()
        assert (answer.status, [*error], answer.content_type) == (400, ["error"], "application/json")
        assert error["error"].startswith(message), error
        assert not engine.requests
    serve(scenario, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Embeddings


def post_embed(serve, path, **body):
    async def scenario(client, _):
        answer = await client.post(path, json={"model": "loom", **body})
        return answer.status, await answer.json(), answer.headers
    return serve(scenario, embeddings=True)


@pytest.mark.parametrize(("texts", "num_texts"), [("abc", 1), (["abc", "d"], 2)])
def test_embeddings_have_unit_length(serve, texts, num_texts):
    status, answer, headers = post_embed(serve, "/api/embed", input=texts, truncate=True)
    assert (status, headers["x-ignored-fields"]) == (200, "truncate")
    assert answer.pop("total_duration") > 0
    assert answer == {"model": "loom", "embeddings": [[1.0, *[0.0] * 15]] * num_texts,
                      "prompt_eval_count": len("".join(texts))}


@pytest.mark.parametrize(("dimensions", "length"), [(3, 3), (0, 16), (None, 16)])
def test_embeddings_are_shortened(serve, dimensions, length):
    _, answer, _ = post_embed(serve, "/api/embed", input="abc", dimensions=dimensions)
    assert answer["embeddings"] == [[1.0, *[0.0] * (length - 1)]]


def test_old_route_returns_the_vector_as_it_is(serve):
    status, answer, _ = post_embed(serve, "/api/embeddings", prompt="abc")
    assert (status, answer) == (200, {"embedding": [3.0, *[0.0] * 15]})


@pytest.mark.parametrize(("path", "body", "message"), [
    ("/api/embed", {"input": "x", "dimensions": 17}, "`dimensions` must be at most 16 with this model, got 17"),
    ("/api/embed", {"input": ""}, "`input` must not be an empty string"),
    ("/api/embeddings", {"prompt": ""}, "`prompt` must not be an empty string")])
def test_invalid_embedding_requests_are_refused(serve, path, body, message):
    assert post_embed(serve, path, **body)[:2] == (400, {"error": message})


@pytest.mark.parametrize(("path", "body"), [("/api/embed", {"input": "x"}), ("/api/embeddings", {"prompt": "x"})])
def test_model_without_embeddings_says_what_it_serves(post, path, body):
    status, _, text = post(path, model="loom", **body)
    assert (status, json.loads(text)["error"].partition(";")[0]) == (400, "this model does not make embeddings")
    status, _, text = post(path, model="c", **body, store=FakeAdapterStore())
    assert (status, json.loads(text)["error"].partition(";")[0]) == (400, "this model does not make embeddings")
