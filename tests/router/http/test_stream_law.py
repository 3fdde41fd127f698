"""The law of streams, for all renderings of an answer together: OpenAI's chats, completions and Responses, Anthropic's
Messages, and Ollama. Whatever the model writes, however it is cut into tokens and bursts, and however it ends, a stream
adds up to the answer that is not streamed, and has exactly one end."""

import random
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from aiohttp import ClientPayloadError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from support.answers.drawn_answers import (
    CALLS_BY_MARKER,
    END_TOKEN_TEXT,
    MARKER_PATTERN,
    PROMPT_TEXT,
    RECORDED_ANSWERS,
    AnswerTokenizer,
    DrawnAnswer,
    Generation,
    drawn_answers,
    generate,
    generate_in_cuts,
    resume_events,
)
from support.answers.renderings import FAILURE, FINISH_REASONS, RENDERINGS, ReceivedAnswer, Rendering, count_tokens
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent
from router.errors import Cancelled, GenerationFailed, NotReady, TimedOut
from router.http.openai.rendering import TokenChunkDetails, TokenChunkRenderer
from router.http.tgi.rendering import GenerateStreamRenderer
from router.request import FinishReason
from router.text.output_formats import FORMAT_BY_TEMPLATE_MARKER, HERMES_FORMAT

OPTIONS = st.fixed_dictionaries({"has_logprobs": st.booleans(), "keeps_stop_strings": st.booleans(),
                                 "echoes_prompt": st.booleans()})
SEEDS = st.integers(0, 2**32)
LENGTH_REASONS = {FinishReason.LENGTH, FinishReason.TIMEOUT}


def check_stream(rendering: Rendering, generation: Generation, rng: random.Random) -> ReceivedAnswer:
    """Check that a stream adds up to the whole answer, and return that."""
    whole = rendering.read_whole(rendering.render_whole(generation))
    streamed = rendering.read_stream(rendering.render_stream(generation, generation.cut_into_bursts(rng)))
    assert len(streamed.ends) == 1
    assert replace(streamed, ends=[]) == replace(whole, ends=[])
    assert count_tokens(whole.usage) == len(generation.output.tokens) == generation.final_event.num_tokens
    return whole


def check_failed_stream(rendering: Rendering, generation: Generation, whole: ReceivedAnswer,
                        rng: random.Random) -> None:
    """Check that a stream that fails before the last token has a part of the answer, and its error as its only end."""
    events = generation.events[:rng.randrange(len(generation.output.tokens))]
    bursts = [[event] for event in events] + [[FAILURE]] if rng.random() < 0.5 else [[*events, FAILURE]]
    failed = rendering.read_stream(rendering.render_stream(generation, bursts))
    assert failed.ends == ["error"]
    if not rendering.stop_strings:  # whose beginning is text after a failure
        assert whole.text.startswith(failed.text)
        assert whole.reasoning.startswith(failed.reasoning)


def check_agreement(wholes: Mapping[str, ReceivedAnswer], generation: Generation, rendering: Rendering) -> None:
    """Check that all renderings show the same answer, and completions its text as the model wrote it."""
    completion = wholes["completion"].text.removeprefix(PROMPT_TEXT if rendering.echoes_prompt else "")
    assert generation.final_event.text.startswith(completion)
    assert wholes["chat"].content == wholes["response"].content
    try:
        calls = [[name, from_json(arguments, allow_inf_nan=False)] for name, arguments in wholes["chat"].calls]
    except ValueError:  # a call that was cut off, or holds a number that is none
        return
    if not rendering.keeps_stop_strings or not rendering.stop_strings:
        text, reasoning, _ = wholes["chat"].content
        assert wholes["message"].content == wholes["Ollama"].content == (text, reasoning, calls)


def check_answer(answer: DrawnAnswer, options: Mapping[str, bool], num_cuts: int, seed: int) -> None:
    rng = random.Random(seed)
    renderings = {name: rendering(answer, **options) for name, rendering in RENDERINGS.items()}
    contents = []  # of the answer in each of its cuts
    for generation in generate_in_cuts(answer, num_cuts, rng):
        wholes = {name: check_stream(rendering, generation, rng) for name, rendering in renderings.items()}
        for name, whole in wholes.items():
            check_end(name, whole, generation, has_logprobs=options["has_logprobs"])
        check_agreement(wholes, generation, renderings["chat"])
        failing = rng.choice([*RENDERINGS])
        check_failed_stream(renderings[failing], generation, wholes[failing], rng)
        contents.append({name: whole.content for name, whole in wholes.items()})
    assert contents == [contents[0]] * num_cuts


def check_end(name: str, whole: ReceivedAnswer, generation: Generation, *, has_logprobs: bool) -> None:
    event = generation.final_event
    assert END_TOKEN_TEXT not in whole.text + whole.reasoning
    expected = "length" if event.finish_reason in LENGTH_REASONS and not event.is_stopped else "stop"
    if expected == "stop" and whole.calls and name in {"chat", "message"}:
        expected = "calls"
    assert FINISH_REASONS[whole.finish_reason] == expected
    if has_logprobs and name in {"chat", "Ollama"}:
        assert len(whole.logprobs) == len(generation.output.tokens)


def test_every_format_of_calls_has_an_example() -> None:
    assert FORMAT_BY_TEMPLATE_MARKER.keys() <= CALLS_BY_MARKER.keys()


@pytest.mark.slow
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(answer=drawn_answers(), options=OPTIONS, seed=SEEDS)
def test_streams_add_up_to_the_answers_that_are_not_streamed(answer, options, seed):
    check_answer(answer, options, 2, seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=10_000, suppress_health_check=[HealthCheck.too_slow])
@given(answer=drawn_answers(), options=OPTIONS, seed=SEEDS)
def test_ten_thousand_streams_in_twenty_cuts_add_up(answer, options, seed):
    check_answer(answer, options, 20, seed)


@pytest.mark.parametrize("name", RECORDED_ANSWERS)
def test_recorded_streams_add_up(name):
    """What the demo model wrote, in its own tokens and in others."""
    tokens = RECORDED_ANSWERS[name]
    answer = DrawnAnswer(
        "".join(tokens), None, "end token", has_stop_strings=False, is_at_limit=False, marker_kind="added",
        output_format=HERMES_FORMAT, must_call=False, has_format=False,
        prompt_end="<|im_start|>assistant\n" + "<think>\n" * ("</think>" in tokens), stop_token_text="!")
    options = {"has_logprobs": True, "keeps_stop_strings": False, "echoes_prompt": False}
    check_answer(answer, options, 20, 0)
    cut = [(token.encode(), MARKER_PATTERN.fullmatch(token) is not None) for token in tokens]
    generation = generate(answer, AnswerTokenizer(answer, [cut]), cut, random.Random(0))
    wholes = {name: check_stream(rendering(answer, **options), generation, random.Random(0))
              for name, rendering in RENDERINGS.items()}
    assert bool(wholes["chat"].calls) == ("<tool_call>" in tokens)
    assert bool(wholes["chat"].reasoning) == ("</think>" in tokens)
    assert count_tokens(wholes["chat"].usage) == len(tokens) + 1


@pytest.mark.slow
@settings(max_examples=50)
@given(answer=drawn_answers(), options=OPTIONS, seed=SEEDS, name=st.sampled_from(["chat", "completion"]))
def test_choices_of_one_stream_each_add_up(answer, options, seed, name):
    rng, rendering = random.Random(seed), RENDERINGS[name](answer, **options)
    generations = generate_in_cuts(answer, 3, rng)
    text = rendering.render_choices([(each, each.cut_into_bursts(rng)) for each in generations], rng)
    received = rendering.read_choices(text, 3)
    for generation, streamed in zip(generations, received, strict=True):
        whole = rendering.read_whole(rendering.render_whole(generation))
        assert replace(streamed, ends=[], usage=None) == replace(whole, usage=None)
        assert len(streamed.ends) == 1
    assert count_tokens(received[0].usage) == sum(len(each.output.tokens) for each in generations)


# -- a stream that goes on elsewhere

CALL_ID_PATTERN = re.compile(rb'"call_[0-9a-f]{24}"')
TOKEN_IDS_PATTERN = re.compile(rb'"token_ids":\[\d+\]|"token":\{"id":\d+,')


def create_id_renderer(name, answer, generation, options):
    """Return a renderer whose events name the tokens. A call's id is drawn anew by each."""
    if name == "TGI":
        return GenerateStreamRenderer(generation.output.validated_request, _has_details=True, _text_prefix="")
    rendering = RENDERINGS[name](answer, **options, returns_token_ids=True)
    return TokenChunkRenderer(rendering.create_renderer(generation), TokenChunkDetails(has_usage=True, prompt_ids=(7,)))


def split_events(rendered: bytes) -> list[bytes]:
    assert rendered == b"" or rendered.endswith(b"\n\n")
    return [event + b"\n\n" for event in CALL_ID_PATTERN.sub(b'"id"', rendered).split(b"\n\n")[:-1]]


@pytest.mark.slow
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(answer=drawn_answers(), options=OPTIONS, seed=SEEDS, name=st.sampled_from(["chat", "completion", "TGI"]))
def test_stream_goes_on_behind_any_of_its_tokens(answer, options, seed, name):
    """Another server's renderer, told of the tokens that a client has, sends exactly the events that follow the last
    one of these tokens."""
    rng = random.Random(seed)
    [generation] = generate_in_cuts(answer, 1, rng)
    renderer, bursts = create_id_renderer(name, answer, generation, options), generation.cut_into_bursts(rng)
    whole = split_events(b"".join([renderer.render(burst) for burst in bursts]))
    places = [place for place, event in enumerate(whole, 1) if TOKEN_IDS_PATTERN.search(event)]
    num_tokens = rng.randrange(len(generation.output.tokens))
    known_events, events = resume_events(generation, num_tokens)
    assert events == generation.events[num_tokens:]
    resumed = create_id_renderer(name, answer, generation, options)
    resumed.render([*known_events])
    rest = [resumed.render(events[:-len(bursts[-1])]), resumed.render(events[-len(bursts[-1]):])]
    assert split_events(b"".join(rest)) == whole[places[num_tokens - 1] if num_tokens else 0:]
    assert resumed.is_finished


# -- over HTTP

MESSAGES = [{"role": "user", "content": "hi"}]
# The body of a stream of each route, and what only its end has.
ROUTES = {
    "/v1/chat/completions": ({"messages": MESSAGES, "stream": True}, r'"finish_reason":"|data: {"error"'),
    "/v1/completions": ({"prompt": "hi", "stream": True}, r'"finish_reason":"|data: {"error"'),
    "/v1/responses": ({"input": "hi", "stream": True}, r"event: response\.(completed|incomplete|failed)"),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 9, "stream": True}, r"event: (message_stop|error)"),
    "/api/chat": ({"model": "x", "messages": MESSAGES}, r'"done":true|^{"error"')}
TOKEN = TokenEvent(97, "a", -0.5, False)
ENDS = {
    **{str(reason): [TOKEN, FinishedEvent(reason, "a", 1, make_finished_timeline())] for reason in FinishReason},
    "stop token at the limit": [TOKEN, FinishedEvent(FinishReason.LENGTH, "a", 1, make_finished_timeline(),
                                                     is_stopped=True)],
    **{type(error).__name__: [TOKEN, FailedEvent(error)]
       for error in (GenerationFailed("x"), TimedOut("x"), NotReady("x"), Cancelled("x"))},
    "failure without a token": [FailedEvent(GenerationFailed("x"))]}


@pytest.mark.parametrize("path", ROUTES)
def test_every_stream_has_one_end_which_comes_last(serve, path):
    """A cancelled request has none: its connection breaks off, so that no client takes its text for whole."""
    async def scenario(client, engine):
        body, end_pattern = ROUTES[path]
        for name, script in ENDS.items():
            engine.scripts.append(script)
            answer = await client.post(path, json=body)
            text = b""
            try:
                async for piece in answer.content.iter_any():
                    text += piece
            except ClientPayloadError:
                assert name == "Cancelled"
            ends = [*re.finditer(end_pattern, text.decode(), re.MULTILINE)]
            assert len(ends) == (name != "Cancelled"), (name, text)
            assert text.count(b"data: [DONE]\n\n") == (len(ends) if "completions" in path else 0)
    serve(scenario)
