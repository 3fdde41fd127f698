"""What a client received, brought to one form for all dialects, and the judgement of it.

    reader = AnswerReader(request.answer_format)
    reader.feed_line(line)                  each line of a stream
    judge_end(reader.answer, is_cut, ...)   how the request ended, and what was wrong

An answer is a text per channel, such as `0.text` or `1.finish`. Whatever a client has received of a channel must be
the beginning of the undisturbed answer, and all of it if the answer is complete.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.chaos.request_mix import AnswerFormat, JsonObject

SSE_FORMATS = {"tgi_stream", "chat_stream", "completion_stream", "responses_stream", "messages_stream"}
RESPONSES_ENDS = {"response.completed", "response.incomplete"}


@dataclass(slots=True)
class Answer:
    status: int = 0
    channels: dict[str, str] = field(default_factory=lambda: defaultdict(str))
    num_ends: int = 0  # terminal events, of success or failure
    error: str = ""
    problems: list[str] = field(default_factory=list)  # what breaks the protocol


class AnswerReader:
    """Reads one answer, whole or line by line."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        self._format = answer_format
        self._num_finished_choices = 0
        self.answer = Answer()

    @property
    def is_stream(self) -> bool:
        return self._format.endswith("_stream")

    def read_whole(self, body: bytes) -> None:
        """Read a complete body: the answer of a request without a stream, or an error with a status of its own."""
        try:
            content = json.loads(body)
        except ValueError:
            self.answer.problems.append(f"status {self.answer.status} with a body that is no JSON: {body[:80]!r}")
            return
        self.answer.num_ends += 1
        if self.answer.status >= 400:
            self.answer.error = find_error_message(content)
            if not self.answer.error:
                self.answer.problems.append(f"status {self.answer.status} without an error message: {body[:80]!r}")
            return
        for name, text in parse_answer_channels(self._format, content).items():
            self.answer.channels[name] = text

    def feed_line(self, line: bytes) -> None:
        """Take the next line of a stream."""
        line = line.strip()
        if self._format in SSE_FORMATS:
            if not line.startswith(b"data:"):
                return
            line = line[5:].strip()
        if not line:
            return
        if self.answer.num_ends and not self._may_follow_end(line):
            self.answer.problems.append(f"after the end: {line[:120]!r}")
        if line == b"[DONE]":
            self._read_done()
            return
        try:
            event = json.loads(line)
        except ValueError:
            self.answer.problems.append(f"no JSON: {line[:80]!r}")
            return
        if message := find_error_message(event):
            self._read_error(message)
        else:
            getattr(self, f"_feed_{self._format}")(event)

    def _may_follow_end(self, line: bytes) -> bool:
        if self._format in {"chat_stream", "completion_stream"}:  # an error ends the stream and is followed by this
            return bool(self.answer.error) and line == b"[DONE]"
        return self._format == "responses_stream" and bool(self.answer.error) and b'"type":"error"' in line

    def _read_error(self, message: str) -> None:
        if not self.answer.error:
            self.answer.num_ends += 1
        self.answer.error = message

    def _read_done(self) -> None:
        if not self.answer.error:
            self.answer.num_ends += 1
            num_choices = len({name.partition(".")[0] for name in self.answer.channels})
            if self._num_finished_choices != num_choices:
                self.answer.problems.append(
                    f"[DONE] after {self._num_finished_choices} finish reasons of {num_choices} choices")

    def _finish(self, choice: int | str, reason: str) -> None:
        name = f"{choice}.finish"
        if name in self.answer.channels:
            self.answer.problems.append(f"choice {choice} has two finish reasons")
        self.answer.channels[name] = reason
        self._num_finished_choices += 1

    def _feed_tgi_stream(self, event: JsonObject) -> None:
        channels = self.answer.channels
        channels["0.tokens"] += format_token(event["token"])
        if event["index"] != len(channels["0.tokens"].split()):
            self.answer.problems.append(f"token {event['index']} came as number {len(channels['0.tokens'].split())}")
        if event["generated_text"] is not None:
            channels["0.text"] = event["generated_text"]
            self._finish(0, event["details"]["finish_reason"])
            self.answer.num_ends += 1

    def _feed_chat_stream(self, event: JsonObject) -> None:
        for choice in event["choices"]:
            index, delta = choice["index"], choice["delta"]
            self.answer.channels[f"{index}.text"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                self.answer.channels[f"{index}.calls"] += function.get("name", "") + function.get("arguments", "")
            if choice["finish_reason"] is not None:
                self._finish(index, choice["finish_reason"])

    def _feed_completion_stream(self, event: JsonObject) -> None:
        for choice in event["choices"]:
            self.answer.channels[f"{choice['index']}.text"] += choice["text"]
            if choice["finish_reason"] is not None:
                self._finish(choice["index"], choice["finish_reason"])

    def _feed_responses_stream(self, event: JsonObject) -> None:
        if event["type"] == "response.output_text.delta":
            self.answer.channels["0.text"] += event["delta"]
        if event["type"] in RESPONSES_ENDS:
            whole = parse_answer_channels("responses", event["response"])
            if whole["0.text"] != self.answer.channels["0.text"]:
                self.answer.problems.append("the last event has another text than the deltas")
            self._finish(0, whole["0.finish"])
            self.answer.num_ends += 1

    def _feed_messages_stream(self, event: JsonObject) -> None:
        if event["type"] == "content_block_delta":
            self.answer.channels["0.text"] += event["delta"].get("text", "")
        elif event["type"] == "message_delta":
            self._finish(0, event["delta"]["stop_reason"])
        elif event["type"] == "message_stop":
            self.answer.num_ends += 1

    def _feed_ollama_stream(self, event: JsonObject) -> None:
        self.answer.channels["0.text"] += parse_ollama_text(event)
        if event["done"]:
            self._finish(0, event["done_reason"])
            self.answer.num_ends += 1


def parse_answer_channels(answer_format: AnswerFormat, content: Any) -> dict[str, str]:
    """Return the channels of a complete answer."""
    return WHOLE_READERS[answer_format](content)


def parse_tgi_answer(content: JsonObject) -> dict[str, str]:
    details = content["details"]
    return {"0.text": content["generated_text"], "0.finish": details["finish_reason"],
            "0.prefill": "".join(map(format_token, details["prefill"])),
            "0.tokens": "".join(map(format_token, details["tokens"]))}


def format_token(token: JsonObject) -> str:
    """Return a token with its logprob: exact kernels make the same bits in every batch."""
    return f"{token['id']}:{token['logprob']} "


def parse_chat_answer(content: JsonObject) -> dict[str, str]:
    channels = {}
    for choice in content["choices"]:
        index, message = choice["index"], choice["message"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        channels[f"{index}.text"] = message.get("content") or ""
        channels[f"{index}.calls"] = "".join(call["name"] + call["arguments"] for call in calls)
        channels[f"{index}.finish"] = choice["finish_reason"]
    return channels


def parse_completion_answer(content: JsonObject) -> dict[str, str]:
    return {f"{choice['index']}.{name}": choice[key] for choice in content["choices"]
            for name, key in (("text", "text"), ("finish", "finish_reason"))}


def parse_responses_answer(content: JsonObject) -> dict[str, str]:
    texts = [part.get("text", "") for item in content["output"] for part in item.get("content", ())]
    return {"0.text": "".join(texts), "0.finish": content["status"]}


def parse_messages_answer(content: JsonObject) -> dict[str, str]:
    return {"0.text": "".join(block.get("text", "") for block in content["content"]),
            "0.finish": content["stop_reason"]}


def parse_ollama_answer(content: JsonObject) -> dict[str, str]:
    return {"0.text": parse_ollama_text(content), "0.finish": content["done_reason"]}


def parse_plain_answer(content: Any) -> dict[str, str]:
    """Return one channel with the whole body, without ids, times and the counts of cached tokens."""
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if name not in {"id", "created", "usage"}}
    return {"0.text": json.dumps(content, sort_keys=True)}


WHOLE_READERS: Mapping[str, Callable[[Any], dict[str, str]]] = {
    "tgi": parse_tgi_answer, "chat": parse_chat_answer, "completion": parse_completion_answer,
    "responses": parse_responses_answer, "messages": parse_messages_answer,
    "ollama": parse_ollama_answer, "plain": parse_plain_answer}


def parse_ollama_text(event: JsonObject) -> str:
    return str(event["message"]["content"] if "message" in event else event["response"])


def find_error_message(content: Any) -> str:
    """Return the message of an error in any dialect's shape, empty if this is no error."""
    if not isinstance(content, dict):
        return ""
    error = content.get("error")
    if error is None and content.get("type") == "response.failed":
        error = content["response"]["error"]
    if isinstance(error, dict):
        error = error.get("message")
    if error is None and content.get("type") == "error":
        error = content.get("message")
    return str(error) if error else ""


def compare_with_reference(answer: Answer, reference: Answer, *, is_complete: bool) -> list[str]:
    """Return how an answer differs from the undisturbed one. An incomplete one may lack the end of each channel."""
    problems = []
    for name, text in answer.channels.items():
        expected = reference.channels.get(name, "")
        if not (text == expected if is_complete else expected.startswith(text)):
            problems.append(f"{name}: {shorten_around_difference(text, expected)}")
    if is_complete:
        problems += [f"{name} is missing" for name in reference.channels
                     if name not in answer.channels and reference.channels[name]]
    return problems


def shorten_around_difference(text: str, expected: str) -> str:
    at = next((index for index, (one, other) in enumerate(zip(text, expected, strict=False)) if one != other),
              min(len(text), len(expected)))
    start = max(0, at - 20)
    return f"at {at} {text[start:at + 40]!r} instead of {expected[start:at + 40]!r}"
