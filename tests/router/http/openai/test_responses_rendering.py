"""Answers as OpenAI's responses: a stream in any pieces ends with the response that is not streamed."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.expected_streams import make_finished_timeline

from router.engine.output_stream import FailedEvent, FinishedEvent, TokenEvent, TopToken
from router.errors import GenerationFailed
from router.http.openai.answer_parts import parse_answer
from router.http.openai.responses_rendering import ResponseEvents, ResponseStreamRenderer
from router.http.transport.services import GenerationOutput
from router.request import FinishReason, Request
from router.text.constrained_answer_parsers import RequiredCallParser
from router.text.output_formats import HERMES_FORMAT
from router.text.response_parser import ContentPiece, OutputFormatParser, ParsedToolCall, ReasoningPiece
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import ValidatedRequest

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SNIPPETS = st.sampled_from(["<think>", "</think>", " ", "\n", "Hi", "é", CALL, CALL[:20], "STOP", "ST", "<tool_call>",
                            CALL.replace("}}", ", NaN}}"), CALL[:44]])
MAKE_PARSERS = {
    "none": lambda: None, "calls": lambda: OutputFormatParser(HERMES_FORMAT, "", [{"function": {"name": "f"}}]),
    "required": RequiredCallParser}
RANDOM_IDS = re.compile(r"(resp|msg|rs|fc|call)_[0-9a-f]+")
TIMES = re.compile(r'(created_at|completed_at)": [0-9]+')  # in seconds, one of which may pass within a test
END_TOKEN_EVENT = TokenEvent(256, "<|im_end|>", -0.5, True)


def make_tokens(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [TokenEvent(1, text[start:stop], -0.5, False) for start, stop in pairwise(places)]


def make_renderer(parser=None, stops=(), *, includes_logprobs=False):
    return ResponseStreamRenderer(ResponseEvents("resp_1", '"model":"loom"'), 2, stops, parser,
                                  create_byte_tokenizer() if includes_logprobs else None)


def make_output(tokens, text, reason=FinishReason.END_TOKEN, *, is_stopped=False):
    end = FinishedEvent(reason, text, len(tokens), make_finished_timeline(), is_stopped=is_stopped)
    return GenerationOutput(ValidatedRequest(Request("0", (1, 2), 50), None), tokens, [], end)


def parse_events(text):
    """Return the data of the events, whose types are those in their lines `event:`."""
    events = []
    for block in text.split("\n\n")[:-1]:
        event_line, data_line = block.split("\n")
        events.append(json.loads(data_line.removeprefix("data: ")))
        assert event_line == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    return events


def stream_events(renderer, output):
    *tokens, last = [*output.tokens, output.final_event]
    bursts = [renderer.render_opening().encode(), *(renderer.render([token]) for token in tokens[:-1]),
              renderer.render([*tokens[-1:], last])]
    return parse_events(b"".join(bursts).decode())


def render_whole(output, parser=None, stops=(), **options):
    return json.loads(make_renderer(parser, stops, **options).render_whole(output))


def get_text(item):
    return item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]


def read_part(item):
    if item["type"] == "function_call":
        return ParsedToolCall(item["name"], item["arguments"])
    return (ContentPiece if item["type"] == "message" else ReasoningPiece)(get_text(item))


def without_ids(value):
    """Return JSON without what differs between two responses to one output: ids and times."""
    return TIMES.sub(r'\1": 0', RANDOM_IDS.sub(r"\1_", json.dumps(value)))


@given(snippets=st.lists(SNIPPETS, max_size=8), cuts=st.lists(st.integers(0, 200), max_size=12),
       reason=st.sampled_from(FinishReason), stops=st.sampled_from([(), ("STOP",)]),
       kind=st.sampled_from([*MAKE_PARSERS]), includes_logprobs=st.booleans())
def test_stream_in_any_pieces_ends_with_the_whole_response(*, snippets, cuts, reason, stops, kind, includes_logprobs):
    text = "".join(snippets).partition("STOP")[0]
    is_stopped = bool(stops) and reason is FinishReason.STOP_STRING
    text += "STOP" * is_stopped
    output = make_output(make_tokens(text, cuts), text, reason, is_stopped=is_stopped)
    whole = render_whole(output, MAKE_PARSERS[kind](), stops, includes_logprobs=includes_logprobs)
    assert [read_part(item) for item in whole["output"]] == parse_answer(output, MAKE_PARSERS[kind](), stops).parts
    assert [whole["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")] == [
        2, len(output.tokens), 2 + len(output.tokens)]

    events = stream_events(make_renderer(MAKE_PARSERS[kind](), stops, includes_logprobs=includes_logprobs), output)
    is_completed = is_stopped or reason in {FinishReason.END_TOKEN, FinishReason.STOP_STRING}
    last_type = "response.completed" if is_completed else "response.incomplete"
    ends = [event["type"] for event in events if event["type"] in {"response.completed", "response.incomplete"}]
    assert ends == [events[-1]["type"]] == [last_type]
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    check_item_events(events)


def check_item_events(events):
    """Check that the pieces of every item add up to it, in the order that clients rely on."""
    output = events[-1]["response"]["output"]
    for index, item in enumerate(output):
        own = [event for event in events if event.get("output_index") == index]
        names = [event["type"].removeprefix("response.").split(".") for event in own]
        kinds = [name for name, _ in names]
        assert [events.index(event) for event in own] == [*range(events.index(own[0]), events.index(own[0]) + len(own))]
        deltas = [event["delta"] for event in own if event["type"].endswith(".delta")]
        assert "".join(deltas) == get_text(item)
        assert all(deltas)
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        assert own[0]["item"] | {"status": "", "content": [], "arguments": ""} == item | {
            "status": "", "content": [], "arguments": ""}
        assert own[-1]["item"] == item
        text_kind = {"message": "output_text", "reasoning": "reasoning_text"}.get(item["type"],
                                                                                "function_call_arguments")
        part = ["content_part"] * (item["type"] != "function_call")
        assert kinds == ["output_item", *part, *[text_kind] * (len(deltas) + 1), *part, "output_item"]
        assert item["status"] == (events[-1]["response"]["status"] if item is output[-1] else "completed")


def test_items_follow_in_the_order_of_the_answer():
    text = f"<think>why</think>\nok{CALL}{CALL}"
    output = make_output([*make_tokens(text, [8, 20, 40]), END_TOKEN_EVENT], text)
    parser = OutputFormatParser(HERMES_FORMAT, "", [{"function": {"name": "f"}}])
    events = stream_events(make_renderer(parser), output)
    response = events[-1]["response"]
    reasoning, message, *calls = response["output"]
    assert reasoning == {"id": reasoning["id"], "type": "reasoning", "status": "completed", "summary": [],
                         "content": [{"type": "reasoning_text", "text": "why"}]}
    assert message == {"id": message["id"], "type": "message", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}]}
    for call in calls:
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"a": 1}')
    assert len({call["call_id"] for call in calls}) == 2
    assert [event["type"] for event in events[:3]] == ["response.created", "response.in_progress",
                                                       "response.output_item.added"]
    assert events[0]["response"] | {"status": "", "output": [], "usage": None, "completed_at": None} == response | {
        "status": "", "output": [], "usage": None, "completed_at": None}
    check_item_events(events)


def test_reasoning_tokens_are_those_up_to_the_last_text_of_reasoning():
    pieces = ["<think>", "a", " b", "</think>", "\n\n", "c"]
    output = make_output([TokenEvent(1, piece, -0.5, False) for piece in pieces], "".join(pieces))
    response = render_whole(output, OutputFormatParser(HERMES_FORMAT, ""), includes_logprobs=True)
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert [token["token"] for token in response["output"][1]["content"][0]["logprobs"]] == ["c"]


def test_logprobs_of_text_cover_all_tokens():
    top = TopToken(98, "b", -2.0, False)
    tokens = [TokenEvent(97, "a", -0.5, False, (top,)), TokenEvent(99, "", -0.5, False), END_TOKEN_EVENT]
    events = stream_events(make_renderer(includes_logprobs=True), make_output(tokens, "a"))
    [delta] = [event for event in events if event["type"] == "response.output_text.delta"]
    assert delta["logprobs"] == [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
        {"token": "b", "logprob": -2, "bytes": [98]}]}]
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [token["token"] for token in part["logprobs"]] == ["a", "", "<|im_end|>"]


@pytest.mark.parametrize(("reason", "status", "details"), [
    (FinishReason.END_TOKEN, "completed", None), (FinishReason.TIMEOUT, "incomplete", {"reason": "max_output_tokens"})])
def test_status_says_whether_the_answer_was_cut_off(reason, status, details):
    response = render_whole(make_output(make_tokens("ab", [1]), "ab", reason))
    assert (response["status"], response["incomplete_details"], response["error"]) == (status, details, None)
    assert (response["completed_at"] is None) == (status == "incomplete")
    assert response["output"][0]["status"] == status


def test_failure_has_the_ended_items_and_an_event_on_which_clients_raise():
    renderer = make_renderer(OutputFormatParser(HERMES_FORMAT, ""))
    tokens = make_tokens("<think>a</think>b", [7, 8, 16])
    rendered = renderer.render([*tokens, FailedEvent(GenerationFailed("broken"))]).decode()
    assert renderer.error is not None
    *_, failed, error = parse_events(rendered + renderer.render_error(renderer.error))
    message = "Request failed during generation: broken"
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": message}
    assert [item["type"] for item in failed["response"]["output"]] == ["reasoning"]
    assert {name: error[name] for name in ("type", "code", "message", "param")} == {
        "type": "error", "code": "server_error", "message": message, "param": None}
    assert error["error"]["message"] == message
