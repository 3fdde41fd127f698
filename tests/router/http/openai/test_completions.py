"""OpenAI's completions route over a scripted engine."""

import asyncio
import json

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events
from support.servers.in_process_server import play_scenario

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent
from router.errors import GenerationFailed, NotReady, Overloaded
from router.request import FinishReason

COMPLETIONS_PATH = "/v1/completions"
FAILURE_SCRIPT = [TokenEvent(97, "a", -1.0, False), FailedEvent(GenerationFailed("broken"))]


def post_completion(post, *scripts, **body_fields):
    status, headers, text = post(COMPLETIONS_PATH, *scripts, **{"prompt": "hi"} | body_fields)
    assert status == 200, text
    return headers, json.loads(text)


def stream_completion(post, *scripts, **body_fields):
    status, headers, text = post(COMPLETIONS_PATH, *scripts, **{"prompt": "hi", "stream": True} | body_fields)
    assert (status, headers["Content-Type"]) == (200, "text/event-stream")
    *lines, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def choices_of_prompt(chunks, index):
    return [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]


@pytest.mark.parametrize(("model", "echoed"), [("whatever", "whatever"), ("default", "loom"), (None, "loom")])
def test_response_is_a_text_completion(post, model, echoed):
    _, answer = post_completion(post, model=model)
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer.pop("system_fingerprint").endswith("-native")
    assert answer == {
        "object": "text_completion", "model": echoed,
        "choices": [{"index": 0, "text": "weft", "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}}


def test_several_prompts_are_answered_in_order_and_counted_together(post):
    headers, answer = post_completion(post, make_text_events("warp"), make_text_events("w", FinishReason.STOP_STRING),
                                      prompt=["hello", "a"])
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (0, "warp", "length"), (1, "w", "stop")]
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}
    assert [headers[f"x-{name}"] for name in ("prompt-tokens", "generated-tokens", "compute-characters")] == [
        "6", "5", "6"]
    assert (headers["x-queue-time"], "x-compute-time" in headers) == ("500", True)


def test_parameters_reach_every_request(serve):
    async def scenario(client, engine):
        await client.post(COMPLETIONS_PATH, headers={"x-request-id": "mine"}, json={
            "prompt": ["a", "b"], "max_tokens": 9, "temperature": 0.5, "top_p": 1, "seed": 5, "stop": "x",
            "frequency_penalty": 0.25, "presence_penalty": -0.5, "repetition_penalty": 1.5, "n": 1, "logprobs": None,
            "user": "someone"})
        first, second = engine.requests
        assert [request.id for request in engine.requests] == ["mine", "mine.1"]
        assert (first.prompt, second.prompt) == ((97,), (98,))
        assert (first.max_new_tokens, first.stop_strings, first.sampling_key) == (9, ("x",), second.sampling_key)
        sampling = first.sampling
        assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.5, 0.0, 1.5)
        assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.25, -0.5)
    serve(scenario)


def test_completion_samples_by_default_and_is_greedy_with_zero_temperature(serve):
    async def scenario(client, engine):
        for body in ({}, {"temperature": 0, "top_p": 0.9}):
            await client.post(COMPLETIONS_PATH, json={"prompt": "a", **body})
        assert [request.sampling.temperature for request in engine.requests] == [1.0, 0.0]
    serve(scenario)


@pytest.mark.parametrize(("body", "param", "words"), [
    ({"suffix": "x"}, "suffix", "`suffix` is given, but this model does not support insert: its tokenizer has no"),
    ({"prompt": ["a"] * 2049}, "prompt", "`prompt` must hold at most 2048 texts with `n` 1, got 2049"),
    ({"n": 33}, "n", "`n` must be at least 1 and at most 32 (--max-choices, --max-concurrent-requests), got 33"),
    ({"n": 0}, "n", "`n` must be at least 1"), ({"top_k": -2}, "top_k", "`top_k` must be at least -1, got -2"),
    ({"n": 32, "prompt": ["a"] * 65}, "prompt", "at most 64 texts with `n` 32"),
    ({"best_of": 3, "n": 2}, "best_of", "`best_of` must be 1 or as `n`, got 3: all choices are returned"),
    ({"echo": 1}, "echo", "`echo`"), ({"logprobs": 21}, "logprobs", "`logprobs` must be at most 20"),
    ({"prompt": []}, "prompt", "`prompt`"), ({"prompt": ["a", ""]}, "prompt", "`prompt` must not be an empty"),
    ({"prompt": [[1], []]}, "prompt", "`prompt.1"), ({"prompt": [1, "a"]}, "prompt", "`prompt.0"),
    ({"prompt": [-1]}, "prompt", "`prompt.0"), ({"prompt": [1.5]}, "prompt", "`prompt.0"),
    ({"prompt": [512]}, "prompt", "`prompt` holds token 512; this model knows those below 512"),
    ({"max_tokens": 0}, "max_tokens", "`max_tokens` must be"), ({"max_tokens": 0, "echo": False}, "max_tokens", "`max"),
    ({"max_tokens": -1}, "max_tokens", "max_tokens"), ({"temperature": -1}, "temperature", "`temperature`"),
    ({"stop": ["a"] * 5}, "stop", "`stop`"), ({"stream_options": 5}, "stream_options", "stream_options"),
    ({"stop": ["a" * 1025]}, "stop", "a string in `stop`"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_field_is_named_in_the_error(post, body, param, words, stream):
    status, _, text = post(COMPLETIONS_PATH, **{"prompt": "hi", "stream": stream} | body)
    error = json.loads(text)["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (NotReady("lost"), 503)])
@pytest.mark.parametrize("stream", [False, True])
def test_rejected_request_has_a_status_on_streams_too(serve, error, status, stream):
    async def scenario(client, engine):
        engine.submit_errors = [error]
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": "a", "stream": stream})
        assert (answer.status, "Retry-After" in answer.headers) == (status, True)
    serve(scenario)


def test_failure_of_one_prompt_fails_the_whole_request(serve):
    async def scenario(client, engine):
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": ["a", "b"]})
        assert (answer.status, (await answer.json())["error"]["type"]) == (500, "server_error")
        assert len(engine.disconnected_requests) == 1
    serve(scenario, FAILURE_SCRIPT, [])


def test_stream_has_a_chunk_for_each_token_of_each_prompt(post):
    chunks = stream_completion(post, make_text_events("warp"), make_text_events("ab", FinishReason.END_TOKEN),
                               prompt=["hello", "b"])
    for index, (text, reason) in enumerate((("warp", "length"), ("ab", "stop"))):
        choices = choices_of_prompt(chunks, index)
        assert [choice["text"] for choice in choices] == list(text)
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(text) - 1) + [reason]
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (chunks[0]["id"], "text_completion", "loom")}


def test_usage_of_all_prompts_is_sent_last_if_requested(post):
    *_, last = stream_completion(post, make_text_events("warp"), make_text_events("ab"), prompt=["hello", "b"],
                                 stream_options={"include_usage": True})
    assert (last["choices"], last["usage"]) == (
        [], {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12})


def test_stream_ends_with_the_failure_of_one_prompt(post):
    _, _, text = post(COMPLETIONS_PATH, FAILURE_SCRIPT, [], prompt=["a", "b"], stream=True)
    first, error, done, rest = text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "a"
    assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
    assert (done, rest) == ("data: [DONE]", "")


def test_client_disconnect_cancels_all_prompts(serve):
    async def scenario(client, engine):
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": ["a", "b"], "stream": True})
        answer.close()
        await engine.client_disconnected.wait()
        assert len(engine.disconnected_requests) == 2
    serve(scenario, [], [])


def test_timeout_is_reported_as_length(post):
    script = [TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.TIMEOUT, "a", 1, make_finished_timeline())]
    assert post_completion(post, script)[1]["choices"][0]["finish_reason"] == "length"


def test_max_client_batch_size_allows_more_prompts(post):
    config = RouterConfig(max_client_batch_size=6)
    assert len(post_completion(post, prompt=["a"] * 6, config=config)[1]["choices"]) == 6


TGI_CONFIG = RouterConfig(compat="tgi")


def test_tgi_compat_keeps_tgi_quirks(post):
    _, answer = post_completion(post, make_text_events("ab", FinishReason.STOP_STRING), config=TGI_CONFIG, n=3,
                                echo=True, logprobs=2)
    assert answer["choices"][0]["finish_reason"] == "stop_sequence"
    chunks = stream_completion(post, make_text_events("ab", FinishReason.END_TOKEN), config=TGI_CONFIG)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["", "eos_token"]


@pytest.mark.parametrize(("path", "fields", "ignored"), [
    (COMPLETIONS_PATH, {"prompt": "hi", "n": 3, "echo": True, "logprobs": 0, "best_of": 1}, "n, echo, logprobs"),
    (COMPLETIONS_PATH, {"prompt": "hi", "n": 1, "echo": False}, None),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2, "x": 1}, "x, n")])
def test_fields_that_tgi_ignored_are_named(post, path, fields, ignored):
    assert post(path, config=TGI_CONFIG, **fields)[1].get("x-ignored-fields") == ignored


PROMPT_SCRIPT = [PromptLogprobsEvent(1, (-2.0,), [[(104, -0.5)]]),
                 TokenEvent(97, "a", -1.0, False), FinishedEvent(FinishReason.STOP_STRING, "a", 1,
                                                                 make_finished_timeline(), is_stopped=True)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_no_tokens_with_echo_return_the_prompt_alone(post, stream, logprobs):
    fields = {"prompt": ["hi", "ho"], "echo": True, "max_tokens": 0, "logprobs": logprobs}
    scripts = [[*PROMPT_SCRIPT] for _ in range(2)]
    if stream:
        *chunks, last = stream_completion(post, *scripts, **fields, stream_options={"include_usage": True})
        choices, usage = [choices_of_prompt(chunks, index) for index in range(2)], last["usage"]
        assert [len(parts) for parts in choices] == [1, 1]
        choices = [parts[0] for parts in choices]
    else:
        headers, answer = post_completion(post, *scripts, **fields)
        choices, usage = answer["choices"], answer["usage"]
        assert headers["x-generated-tokens"] == "0"
    assert usage == {"prompt_tokens": 4, "completion_tokens": 0, "total_tokens": 4}
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("hi", "length"), ("ho", "length")]
    for choice, letter in zip(choices, "io", strict=True):
        assert choice["logprobs"] == (None if logprobs is None else {
            "tokens": ["h", letter], "token_logprobs": [None, -2.0],
            "top_logprobs": [None, {letter: -2.0, "h": -0.5}], "text_offset": [0, 1]})


def test_messages_about_no_tokens_name_none(post):
    """Regression: the token that is computed and left out was shown as the client's."""
    too_long = "`prompt` must have at most 1599 tokens (--max-input-tokens), got {}; shorten it"
    for fields, message in (
            ({"prompt": "x" * 1600}, too_long.format(1600)), ({"prompt": "x" * 1601}, too_long.format(1601)),
            ({"prompt": "x", "min_tokens": 1}, "`min_tokens` must be at most `max_tokens` (0), got 1"),
            ({"prompt": "x", "echo": False}, "`max_tokens` must be at least 1, or 0 with `echo`, got 0")):
        status, _, text = post(COMPLETIONS_PATH, **{"max_tokens": 0, "echo": True} | fields)
        assert (status, json.loads(text)["error"]["message"].removeprefix("the prompt is too long: ")) == (400, message)
    assert post(COMPLETIONS_PATH, [*PROMPT_SCRIPT], prompt="x" * 1599, max_tokens=0, echo=True)[0] == 200


def test_choices_of_several_prompts_come_prompt_by_prompt(serve):
    async def scenario(client, engine):
        answer = await (await client.post(COMPLETIONS_PATH, json={"prompt": ["a", "bb"], "n": 2, "best_of": 2,
                                                                  "max_tokens": 1})).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert [request.prompt for request in engine.requests] == [tuple(b"a"), tuple(b"a"), tuple(b"bb"), tuple(b"bb")]
        assert answer["usage"]["prompt_tokens"] == 3
        assert len({request.id for request in engine.requests}) == 4
    serve(scenario)


@pytest.mark.parametrize(("prompt", "prompts"), [
    ([104, 105], [(104, 105)]), ([[104], [105, 106]], [(104,), (105, 106)]), (["h", [105]], [(104,), (105,)])])
def test_prompts_may_be_token_ids(serve, prompt, prompts):
    async def scenario(client, engine):
        answer = await (await client.post(COMPLETIONS_PATH, json={"prompt": prompt})).json()
        assert [request.prompt for request in engine.requests] == prompts
        assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    serve(scenario)


MANY_PROMPTS = [f"prompt {number}" for number in range(40)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("num_choices", "max_requests", "max_unfinished"), [(1, 20, 10), (3, 20, 9), (3, 2048, 120),
                                                                             (1, 3, 3)])
def test_prompts_run_in_turns_with_half_of_the_places(tmp_path, stream, num_choices, max_requests, max_unfinished):
    async def scenario(weft):
        seen = weft.record_num_unfinished()
        async with weft.http_session.post(COMPLETIONS_PATH, json={
            "prompt": MANY_PROMPTS, "n": num_choices, "temperature": 0, "max_tokens": 3, "stream": stream}) as answer:
            texts = [""] * num_choices * len(MANY_PROMPTS)
            for piece in await read_completions(answer):
                for choice in piece["choices"]:
                    texts[choice["index"]] += choice["text"]
        assert (len(seen), max(seen)) == (len(texts), max_unfinished)
        for index, prompt in enumerate(MANY_PROMPTS):
            async with weft.http_session.post(COMPLETIONS_PATH, json={
                "prompt": prompt, "temperature": 0, "max_tokens": 3}) as answer:
                expected = json.loads(await answer.read())["choices"][0]["text"]
            assert texts[index * num_choices:(index + 1) * num_choices] == [expected] * num_choices
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, max_concurrent_requests=max_requests)


async def read_completions(answer):
    assert answer.status == 200
    text = (await answer.read()).decode()
    if not text.startswith("data: "):
        return [json.loads(text)]
    *lines, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_other_clients_find_places_beside_a_request_of_many_prompts(tmp_path):
    async def scenario(weft):
        many = asyncio.create_task(weft.http_session.post(COMPLETIONS_PATH, json={
            "prompt": MANY_PROMPTS, "max_tokens": 3}).__aenter__())
        await weft.wait_for_steps_in_flight()
        streams = [weft.submit("in the house", 3) for _ in range(5)]
        weft.gate.release_all()
        async with await many as answer:
            assert (answer.status, len(json.loads(await answer.read())["choices"])) == (200, len(MANY_PROMPTS))
        for stream in streams:
            stream.close()
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=10)


@pytest.mark.parametrize("stream", [False, True])
def test_request_of_many_prompts_is_rejected_if_no_place_is_free(tmp_path, stream):
    async def scenario(weft):
        first = weft.submit("in the house", 3)
        async with weft.http_session.post(COMPLETIONS_PATH, json={"prompt": MANY_PROMPTS, "stream": stream}) as answer:
            assert (answer.status, "Retry-After" in answer.headers) == (429, True)
        weft.gate.release_all()
        first.close()
        await weft.check_idle()

    play_scenario(scenario, tmp_path, http=True, gated=True, max_concurrent_requests=1)


def test_failure_of_a_prompt_cancels_those_that_run_and_drops_those_that_wait(serve):
    async def scenario(client, engine):
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": MANY_PROMPTS})
        assert (answer.status, len(engine.requests), len(engine.disconnected_requests)) == (500, 5, 4)
    serve(scenario, FAILURE_SCRIPT, [], [], [], [], config=RouterConfig(max_concurrent_requests=10))


def test_prompt_counts_once_in_headers(serve):
    async def scenario(client, engine):
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": ["a", "bb"], "n": 3, "max_tokens": 1})
        assert answer.headers["x-prompt-tokens"] == "3"
    serve(scenario)


@pytest.mark.parametrize("model", ["http://" + "a" * 600, "x" * 600])
def test_long_model_name_is_not_repeated(post, model):
    assert post_completion(post, model=model)[1]["model"] == "loom"


# -- filling in the middle

def post_infill(serve, tokenizer, **fields):
    """Post a completion with a suffix; return the status, the answer and the requests."""
    async def scenario(client, engine):
        answer = await client.post(COMPLETIONS_PATH, json={"prompt": "ab", "suffix": "cd"} | fields)
        return answer.status, await answer.json(), engine.requests
    return serve(scenario, tokenizer=tokenizer, grammars=True)


@pytest.mark.parametrize(("prompt", "expected"), [("ab", [b"ab"]), (["", "a"], [b"", b"a"])])
def test_suffix_stands_behind_the_place_to_fill(serve, infill_tokenizer, prompt, expected):
    status, answer, requests = post_infill(serve, infill_tokenizer, prompt=prompt, stop_token_ids=[5], logprobs=1)
    assert status == 200
    assert [choice["text"] for choice in answer["choices"]] == ["weft"] * len(expected)
    assert [request.prompt for request in requests] == [(257, *prefix, 258, *b"cd", 259) for prefix in expected]
    assert {request.end_tokens for request in requests} == {frozenset({5, 256, 257, 258, 259, 260})}


def test_grammar_alone_ends_what_fills_a_place(serve, infill_tokenizer):
    status, answer, [request] = post_infill(serve, infill_tokenizer, guided_regex="a+")
    assert (status, request.end_tokens) == (200, frozenset({256})), answer


@pytest.mark.parametrize(("fields", "param", "message"), [
    ({"prompt": [97]}, "prompt", "`prompt` must be text beside `suffix`, got token ids"),
    ({"echo": True}, "echo", "`echo` and `suffix` are given, but a text between two others does not follow the prompt "
                             "alone; leave one of them out"),
    ({"prompt": "x" * 1000, "suffix": "x" * 700}, "prompt",
     "the prompt is too long: `prompt` must have at most 1599 tokens (--max-input-tokens), got 1703; shorten it")])
def test_refusals_beside_a_suffix(serve, infill_tokenizer, fields, param, message):
    status, answer, requests = post_infill(serve, infill_tokenizer, **fields)
    assert (status, answer["error"]["param"], answer["error"]["message"], requests) == (400, param, message, [])


def test_empty_suffix_is_none(serve, infill_tokenizer):
    status, _, [request] = post_infill(serve, infill_tokenizer, suffix="")
    assert (status, bytes(request.prompt)) == (200, b"ab")


# -- ids of tokens, and streams that go on behind some


def test_completion_names_its_tokens(post):
    _, _, text = post("/v1/completions", make_text_events("weft"), prompt="hi", return_token_ids=True)
    [choice] = json.loads(text)["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([*b"hi"], [*b"weft"])


def test_streamed_completion_names_its_tokens(post):
    _, _, text = post("/v1/completions", make_text_events("weft"), prompt="hi", return_token_ids=True, stream=True)
    choices = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
    assert [choice["token_ids"] for choice in choices] == [[byte] for byte in b"weft"]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[*b"hi"], None, None, None]


def test_stream_of_the_prompt_alone_names_no_other_tokens(post):
    _, _, text = post("/v1/completions", make_text_events("w"), prompt="hi", return_token_ids=True, stream=True,
                      echo=True, max_tokens=0)
    [choice] = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
    assert (choice["prompt_token_ids"], "token_ids" in choice) == ([*b"hi"], False)


def test_only_one_text_goes_on(post):
    status, _, text = post("/v1/completions", prompt=["hi", "ho"], resume_token_ids=[97], seed=1, stream=True)
    assert (status, "`prompt` must hold one text with `resume_token_ids`, got 2" in text) == (400, True)
