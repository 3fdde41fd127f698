"""Completions with logprobs and with their prompt: streamed and whole ones have the same content."""

import asyncio
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import (
    FailedEvent,
    FinishedEvent,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
    TopToken,
)
from router.errors import Cancelled, GenerationFailed
from router.http.openai.completion_rendering import (
    CompletionLogprobsBuilder,
    CompletionOutputOptions,
    EchoedPrompt,
    LogprobsAndEchoStreamRenderer,
    completion_json,
    output_choice_json,
)
from router.http.openai.rendering import ResponseMetadata
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import ValidatedRequest

METADATA = ResponseMetadata("cmpl-1", 1_700_000_000, "loom", "0.1.0-native")
TOKENIZER = create_byte_tokenizer()
PROMPT = "h\u00e9"
PROMPT_TOKENS = tuple(PROMPT.encode())
END_TOKEN = 256
GENERATED = st.lists(st.tuples(st.sampled_from([97, 98, 0xC3, END_TOKEN]), st.integers(-8, 0), st.integers(0, 2)),
                     min_size=1, max_size=6)


def make_token(token, logprob, num_tops=0):
    special = token == END_TOKEN
    return TokenEvent(token, "<|end|>" if special else chr(token) if token < 128 else "", logprob / 4, special,
                      tuple(TopToken(top, TOKENIZER.decode_token(top), logprob / 4 + (top != token), top == END_TOKEN)
                            for top in [token, 0xA9, 0xA8][:num_tops]))


def make_output(rows, *, with_prompt):
    tokens = [make_token(*row) for row in rows]
    text = "".join(token.text for token in tokens if not token.special)
    event = PromptLogprobsEvent(1, (-1.0, -2.0), [[(0xC3, -1.0)], [(0x20, -0.5), (0xA9, -2.0)]])
    return GenerationOutput(
        ValidatedRequest(Request("0", PROMPT_TOKENS, 50), None), tokens,
        [None, *event.logprobs] if with_prompt else [None] * 3,
        FinishedEvent(FinishReason.LENGTH, text, len(tokens), make_finished_timeline()),
        event.top_logprobs if with_prompt else ())


def render_whole(output, details):
    choice = output_choice_json(METADATA, 0, output, (), details)
    return json.loads(completion_json(METADATA, [output], 1, [choice]).text)["choices"][0]


@given(rows=GENERATED, has_logprobs=st.booleans(), echoes=st.booleans(), size=st.integers(1, 4))
def test_stream_has_the_content_of_the_whole_completion(rows, has_logprobs, echoes, size):
    with_prompt = has_logprobs and echoes
    output = make_output(rows, with_prompt=with_prompt)
    details = CompletionOutputOptions(TOKENIZER, has_logprobs, EchoedPrompt(PROMPT_TOKENS, PROMPT) if echoes else None)
    renderer = LogprobsAndEchoStreamRenderer(METADATA, 0, 3, (), details)
    events = [*output.tokens, output.final_event]
    if with_prompt:
        tops = output.prompt_top_logprobs
        events = [PromptLogprobsEvent(1, (-1.0,), tops[:1]), PromptLogprobsEvent(2, (-2.0,), tops[1:]), *events]
    data = b"".join(renderer.render(events[place:place + size]) for place in range(0, len(events) - 2, size)
                    if place + size < len(events) - 1)
    start = max((place + size for place in range(0, len(events) - 2, size) if place + size < len(events) - 1),
                default=0)
    data += renderer.render(events[start:])
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in data.decode().split("\n\n")[:-1]]
    whole = render_whole(output, details)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [chunk["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "length"]
    if has_logprobs:
        joined = {name: [value for chunk in chunks for value in chunk["logprobs"][name]] for name in whole["logprobs"]}
        assert joined == whole["logprobs"]
    else:
        assert [chunk["logprobs"] for chunk in chunks] == [None] * len(chunks)


def test_prompt_and_tokens_have_logprobs_candidates_and_offsets():
    output = make_output([(97, -2, 2), (END_TOKEN, -1, 1)], with_prompt=True)
    details = CompletionOutputOptions(TOKENIZER, True, EchoedPrompt(PROMPT_TOKENS, PROMPT))
    choice = render_whole(output, details)
    assert choice["text"] == "h\u00e9a"
    assert choice["logprobs"] == {
        "tokens": ["h", "", "\u00e9", "a", "<|end|>"],
        "token_logprobs": [None, -1.0, -2.0, -0.5, -0.25],
        "top_logprobs": [None, {"": -1.0}, {"\u00e9": -2.0, " ": -0.5}, {"a": -0.5, "\ufffd": 0.5}, {"<|end|>": -0.25}],
        "text_offset": [0, 1, 1, 2, 3]}


def test_candidates_with_equal_texts_are_all_there():
    logprobs = CompletionLogprobsBuilder(TOKENIZER)
    logprobs.add_token(make_token(97, -2, 3))
    [candidates] = json.loads(logprobs.take_json())["top_logprobs"]
    assert candidates == {"a": -0.5, "\ufffd": 0.5, "token_id:168": 0.5}
    assert json.loads(logprobs.take_json()) == {"tokens": [], "token_logprobs": [], "top_logprobs": [],
                                                "text_offset": []}


@pytest.mark.parametrize(("prompt", "text"), [("hi", "hiweft"), ([104, 105], "hiweft"), (["a", [98]], "aweft")])
def test_prompt_is_returned_in_front_of_the_text(post, prompt, text):
    status, _, body = post("/v1/completions", prompt=prompt, echo=True)
    answer = json.loads(body)
    assert (status, answer["choices"][0]["text"], answer["choices"][0]["logprobs"]) == (200, text, None)
    if len(prompt) == 2 and prompt[0] == "a":
        assert answer["choices"][1]["text"] == "bweft"


def test_logprobs_are_asked_of_the_shards(serve):
    async def scenario(client, engine):
        for body in ({}, {"logprobs": 0}, {"logprobs": 3}, {"echo": True}, {"echo": True, "logprobs": 2}):
            answer = await client.post("/v1/completions", json={"prompt": "hi", **body})
            assert answer.status == 200
        assert [(request.sampling.raw_logprobs, request.sampling.top_n_tokens, request.prompt_logprobs,
                 request.num_prompt_top_tokens) for request in engine.requests] == [
            (False, 0, False, 0), (True, 0, False, 0), (True, 3, False, 0), (False, 0, False, 0), (True, 2, True, 2)]
    serve(scenario)


def test_prompt_of_a_stream_is_rendered_off_the_event_loop(monkeypatch):
    """Regression: the logprobs of a long prompt were rendered on the event loop, with the first token."""
    threads, add_prompt = [], CompletionLogprobsBuilder.add_prompt

    def add_prompt_and_record_thread(*arguments):
        threads.append(threading.current_thread())
        add_prompt(*arguments)

    monkeypatch.setattr(CompletionLogprobsBuilder, "add_prompt", add_prompt_and_record_thread)
    output = make_output([(97, -4, 1), (98, -4, 1)], with_prompt=True)
    details = CompletionOutputOptions(TOKENIZER, True, EchoedPrompt(PROMPT_TOKENS, PROMPT))
    renderer = LogprobsAndEchoStreamRenderer(METADATA, 0, 3, (), details)

    async def render():
        stream = RequestStream(output.validated_request.request, 1000, *[lambda: None] * 3)
        task = asyncio.create_task(renderer.render_prompt(stream))
        for event in (PromptLogprobsEvent(1, (-1.0,), output.prompt_top_logprobs[:1]),
                      PromptLogprobsEvent(2, (-2.0,), output.prompt_top_logprobs[1:]), *output.tokens):
            stream.put(event)
            await asyncio.sleep(0)
        await task
        stream.put(output.final_event)
        return renderer.render(stream.take_events())

    chunks = [json.loads(line.removeprefix("data: "))["choices"][0]
              for line in asyncio.run(render()).decode().split("\n\n")[:-1]]
    assert [thread is threading.main_thread() for thread in threads] == [False]
    whole = render_whole(output, details)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert {name: [value for chunk in chunks for value in chunk["logprobs"][name]]
            for name in whole["logprobs"]} == whole["logprobs"]


@pytest.mark.parametrize("error", [GenerationFailed("broken"), Cancelled("left")])
def test_failure_before_the_end_of_the_prompt_is_kept(error):
    details = CompletionOutputOptions(TOKENIZER, True, EchoedPrompt(PROMPT_TOKENS, PROMPT))
    renderer = LogprobsAndEchoStreamRenderer(METADATA, 0, 3, (), details)

    async def render():
        stream = RequestStream(Request("0", PROMPT_TOKENS, 50), 1000, *[lambda: None] * 3)
        stream.put(PromptLogprobsEvent(1, (-1.0,), [[]]))
        stream.put(FailedEvent(error))
        await renderer.render_prompt(stream)
        return renderer.render(stream.take_events())

    assert (asyncio.run(render()), renderer.error) == (b"", error)
