"""Byte-exact answers of LoRAX's own routes."""

import json

import pytest
from support.expected_streams import lived, said

from router.config import RouterConfig
from router.engine.stream import FailedEvent, FinishedEvent, PromptEvent, TokenEvent, TopToken
from router.errors import GenerationFailed, Overloaded
from router.request import FinishReason

LORAX = RouterConfig(compat="lorax")
A, B = (f'{{"id":{ord(letter)},"text":"{letter}","logprob":-0.5,"special":false,"skipped":false}}'
        for letter in "ab")
AT_LENGTH = '"finish_reason":"length","prompt_tokens":2,"generated_tokens":2,"skipped_tokens":0,"seed":null'
TOP = [TokenEvent(97, "a", -0.5, False, (TopToken(97, "a", -0.5, False), TopToken(98, "b", -2.0, False))),
       FinishedEvent(FinishReason.END_TOKEN, "a", 1, lived())]
TOPPED = (A[:-1] + ',"alternative_tokens":[{"id":97,"text":"a","logprob":-0.5},{"id":98,"text":"b","logprob":-2}]}')
LATE = [TokenEvent(97, "a", -0.5, False), FinishedEvent(FinishReason.TIMEOUT, "a", 1, lived())]
LOW = [TokenEvent(97, "a", -9.0, False), FinishedEvent(FinishReason.LENGTH, "a", 1, lived())]
BROKEN = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
WHOLE = {
    "a text": ({}, said("ab"), '{"generated_text":"ab"}'),
    "with its prompt": ({"return_full_text": True}, said("ab"), '{"generated_text":"hiab"}'),
    "details": ({"details": True}, said("ab"),
                f'{{"generated_text":"ab","details":{{{AT_LENGTH},"prefill":[],"tokens":[{A},{B}]}}}}'),
    "details of the prompt": (
        {"decoder_input_details": True}, [PromptEvent(1, (-1.5,)), *said("ab")],
        f'{{"generated_text":"ab","details":{{{AT_LENGTH},"prefill":[{{"id":104,"text":"h","logprob":null}},'
        f'{{"id":105,"text":"i","logprob":-1.5}}],"tokens":[{A},{B}]}}}}'),
    "alternatives": (
        {"details": True, "return_k_alternatives": 2}, TOP,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","prompt_tokens":2,"generated_tokens":1,'
        f'"skipped_tokens":0,"seed":null,"prefill":[],"tokens":[{TOPPED}]}}}}'),
    "a time that ran out": (
        {"details": True}, LATE,
        '{"generated_text":"a","details":{"finish_reason":"length","prompt_tokens":2,"generated_tokens":1,'
        f'"skipped_tokens":0,"seed":null,"prefill":[],"tokens":[{A}]}}}}'),
}
STREAMS = {
    "a text": (
        {}, said("ab"), f'data:{{"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data:{{"token":{B},"generated_text":"ab","details":null}}\n\n'),
    "details": (
        {"details": True}, said("ab"), f'data:{{"token":{A},"generated_text":null,"details":null}}\n\n'
        f'data:{{"token":{B},"generated_text":"ab","details":{{{AT_LENGTH}}}}}\n\n'),
    "alternatives": (
        {"return_k_alternatives": 2}, TOP, f'data:{{"token":{TOPPED},"generated_text":"a","details":null}}\n\n'),
    "with its prompt": (
        {"return_full_text": True}, said("a"), f'data:{{"token":{A},"generated_text":"hia","details":null}}\n\n'),
    "a failure": (
        {}, BROKEN, f'data:{{"token":{A},"generated_text":null,"details":null}}\n\n'
        'data:{"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
}


@pytest.mark.parametrize(("parameters", "script", "expected"), WHOLE.values(), ids=WHOLE)
def test_an_answer(post, parameters, script, expected):
    assert post("/generate", script, config=LORAX, inputs="hi", parameters=parameters)[::2] == (200, expected)
    for path in ("/", "/invocations"):
        assert post(path, script, config=LORAX, inputs="hi", parameters=parameters)[::2] == (200, f"[{expected}]")


@pytest.mark.parametrize(("parameters", "script", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream(post, parameters, script, expected):
    for path in ("/generate_stream", "/", "/invocations"):
        status, headers, text = post(path, script, config=LORAX, inputs="hi", stream=True, parameters=parameters)
        assert (status, headers["Content-Type"], text) == (200, "text/event-stream", expected)


def test_the_best_of_several_is_the_answer(post):
    text = post("/generate", LOW, said("ab"), config=LORAX, inputs="hi",
                parameters={"best_of": 2, "temperature": 0.5, "details": True})[2]
    answer = json.loads(text)
    assert answer["generated_text"] == "ab"
    [other] = answer["details"]["best_of_sequences"]
    assert [*other] == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]


@pytest.mark.parametrize(("path", "told"), [("/generate", "{}"), ("/generate_stream", "data:{}\n\n")])
def test_a_server_that_is_full_says_no_more_than_that(serve, path, told):
    async def scenario(client, engine):
        engine.refusals = [Overloaded("128 requests")]
        answer = await client.post(path, json={"inputs": "hi"})
        assert answer.status == (429 if path == "/generate" else 200)
        assert await answer.text() == told.format('{"error":"Model is overloaded","error_type":"overloaded"}')
    serve(scenario, config=LORAX)
