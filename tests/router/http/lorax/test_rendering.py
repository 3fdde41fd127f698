"""Byte-exact answers of LoRAX's own routes."""

import json

import pytest
from support.servers.expected_streams import make_finished_timeline, make_text_events

from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, FinishedEvent, PromptLogprobsEvent, TokenEvent, TopToken
from router.errors import GenerationFailed, Overloaded
from router.request import FinishReason

LORAX_CONFIG = RouterConfig(compat="lorax")
TOKEN_A, TOKEN_B = (f'{{"id":{ord(letter)},"text":"{letter}","logprob":-0.5,"special":false,"skipped":false}}'
                    for letter in "ab")
LENGTH_DETAILS = '"finish_reason":"length","prompt_tokens":2,"generated_tokens":2,"skipped_tokens":0,"seed":null'
TOP_TOKENS_SCRIPT = [TokenEvent(97, "a", -0.5, False, (TopToken(97, "a", -0.5, False), TopToken(98, "b", -2.0, False))),
                     FinishedEvent(FinishReason.END_TOKEN, "a", 1, make_finished_timeline())]
TOKEN_WITH_ALTERNATIVES_JSON = (
    TOKEN_A[:-1] + ',"alternative_tokens":[{"id":97,"text":"a","logprob":-0.5},{"id":98,"text":"b","logprob":-2}]}')
TIMEOUT_SCRIPT = [TokenEvent(97, "a", -0.5, False),
                  FinishedEvent(FinishReason.TIMEOUT, "a", 1, make_finished_timeline())]
LOW_LOGPROB_SCRIPT = [TokenEvent(97, "a", -9.0, False),
                      FinishedEvent(FinishReason.LENGTH, "a", 1, make_finished_timeline())]
FAILURE_SCRIPT = [TokenEvent(97, "a", -0.5, False), FailedEvent(GenerationFailed("broken"))]
RESPONSE_CASES = {
    "a text": ({}, make_text_events("ab"), '{"generated_text":"ab"}'),
    "with its prompt": ({"return_full_text": True}, make_text_events("ab"), '{"generated_text":"hiab"}'),
    "details": (
        {"details": True}, make_text_events("ab"),
        f'{{"generated_text":"ab","details":{{{LENGTH_DETAILS},"prefill":[],"tokens":[{TOKEN_A},{TOKEN_B}]}}}}'),
    "details of the prompt": (
        {"decoder_input_details": True}, [PromptLogprobsEvent(1, (-1.5,)), *make_text_events("ab")],
        f'{{"generated_text":"ab","details":{{{LENGTH_DETAILS},"prefill":[{{"id":104,"text":"h","logprob":null}},'
        f'{{"id":105,"text":"i","logprob":-1.5}}],"tokens":[{TOKEN_A},{TOKEN_B}]}}}}'),
    "alternatives": (
        {"details": True, "return_k_alternatives": 2}, TOP_TOKENS_SCRIPT,
        '{"generated_text":"a","details":{"finish_reason":"eos_token","prompt_tokens":2,"generated_tokens":1,'
        f'"skipped_tokens":0,"seed":null,"prefill":[],"tokens":[{TOKEN_WITH_ALTERNATIVES_JSON}]}}}}'),
    "a time that ran out": (
        {"details": True}, TIMEOUT_SCRIPT,
        '{"generated_text":"a","details":{"finish_reason":"length","prompt_tokens":2,"generated_tokens":1,'
        f'"skipped_tokens":0,"seed":null,"prefill":[],"tokens":[{TOKEN_A}]}}}}'),
}
STREAM_CASES = {
    "a text": (
        {}, make_text_events("ab"), f'data:{{"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data:{{"token":{TOKEN_B},"generated_text":"ab","details":null}}\n\n'),
    "details": (
        {"details": True}, make_text_events("ab"),
        f'data:{{"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        f'data:{{"token":{TOKEN_B},"generated_text":"ab","details":{{{LENGTH_DETAILS}}}}}\n\n'),
    "alternatives": (
        {"return_k_alternatives": 2}, TOP_TOKENS_SCRIPT,
        f'data:{{"token":{TOKEN_WITH_ALTERNATIVES_JSON},"generated_text":"a","details":null}}\n\n'),
    "with its prompt": (
        {"return_full_text": True}, make_text_events("a"),
        f'data:{{"token":{TOKEN_A},"generated_text":"hia","details":null}}\n\n'),
    "a failure": (
        {}, FAILURE_SCRIPT, f'data:{{"token":{TOKEN_A},"generated_text":null,"details":null}}\n\n'
        'data:{"error":"Request failed during generation: broken","error_type":"generation"}\n\n'),
}


@pytest.mark.parametrize(("parameters", "script", "expected"), RESPONSE_CASES.values(), ids=RESPONSE_CASES)
def test_response_matches_lorax_byte_for_byte(post, parameters, script, expected):
    assert post("/generate", script, config=LORAX_CONFIG, inputs="hi", parameters=parameters)[::2] == (200, expected)
    for path in ("/", "/invocations"):
        assert post(path, script, config=LORAX_CONFIG, inputs="hi",
                    parameters=parameters)[::2] == (200, f"[{expected}]")


@pytest.mark.parametrize(("parameters", "script", "expected"), STREAM_CASES.values(), ids=STREAM_CASES)
def test_stream_matches_lorax_byte_for_byte(post, parameters, script, expected):
    for path in ("/generate_stream", "/", "/invocations"):
        status, headers, text = post(path, script, config=LORAX_CONFIG, inputs="hi", stream=True, parameters=parameters)
        assert (status, headers["Content-Type"], text) == (200, "text/event-stream", expected)


def test_best_of_returns_the_best_sequence(post):
    text = post("/generate", LOW_LOGPROB_SCRIPT, make_text_events("ab"), config=LORAX_CONFIG, inputs="hi",
                parameters={"best_of": 2, "temperature": 0.5, "details": True})[2]
    answer = json.loads(text)
    assert answer["generated_text"] == "ab"
    [other_sequence] = answer["details"]["best_of_sequences"]
    assert [*other_sequence] == ["generated_text", "finish_reason", "generated_tokens", "seed", "prefill", "tokens"]


@pytest.mark.parametrize(("path", "text_format"), [("/generate", "{}"), ("/generate_stream", "data:{}\n\n")])
def test_overloaded_server_returns_only_the_lorax_error(serve, path, text_format):
    async def scenario(client, engine):
        engine.submit_errors = [Overloaded("128 requests")]
        answer = await client.post(path, json={"inputs": "hi"})
        assert answer.status == (429 if path == "/generate" else 200)
        assert await answer.text() == text_format.format('{"error":"Model is overloaded","error_type":"overloaded"}')
    serve(scenario, config=LORAX_CONFIG)
