"""Requests, the output that the simulated model must give them, and the output that a client received."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.scheduling.simulated_world import compute_expected_tokens

from router.engine.output_stream import (
    FailedEvent,
    FinishedEvent,
    PromptLogprobsEvent,
    RequestStream,
    StreamEvent,
    TokenEvent,
)
from router.request import FinishReason, Request
from router.scheduler.sequence import RequestPhase, RequestTimeline
from shard.config import SimulatedConfig

END_TOKEN = 256

request_ids = count()


def make_text_request(prompt: str = "a loom", max_new_tokens: int = 12, **request_fields: Any) -> Request:
    return Request(f"{next(request_ids)}", tuple(prompt.encode()), max_new_tokens, end_tokens=frozenset([END_TOKEN]),
                   **request_fields)


def compute_expected_output(request: Request, model: SimulatedConfig) -> tuple[list[int], str, FinishReason]:
    """Return the tokens, text and finish reason of a request that runs undisturbed."""
    tokens: list[int] = []
    text = ""
    for token in compute_expected_tokens(request, request.max_new_tokens, model):
        tokens.append(token)
        text += chr(token) if token < END_TOKEN else ""
        if len(tokens) < request.max_new_tokens and token in request.end_tokens:
            return tokens, text, FinishReason.END_TOKEN
        if len(tokens) < request.max_new_tokens and text.endswith(request.stop_strings or ("\0",)):
            return tokens, text, FinishReason.STOP_STRING
    return tokens, text, FinishReason.LENGTH


def make_finished_timeline(queue_seconds: float = 0.0, prefill_seconds: float = 0.0,
                           decode_seconds: float = 0.0) -> RequestTimeline:
    """Return the timeline of a finished request that spent these seconds in each phase."""
    timeline = RequestTimeline(0.0)
    timeline.enter_phase(RequestPhase.PREFILL, queue_seconds)
    timeline.enter_phase(RequestPhase.DECODE, queue_seconds + prefill_seconds)
    timeline.end(queue_seconds + prefill_seconds + decode_seconds)
    return timeline


@dataclass(slots=True)
class ReceivedStream:
    request: Request
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    prompt_logprobs: dict[int, float] = field(default_factory=dict)
    finished_event: FinishedEvent | None = None
    error: Exception | None = None

    @classmethod
    async def from_stream(cls, stream: RequestStream) -> "ReceivedStream":
        received = cls(stream.request)
        while received.finished_event is None and received.error is None:
            received.add_events(await stream.wait_for_events())
        return received

    def add_events(self, events: list[Any]) -> None:
        for event in events:
            assert self.finished_event is None, "an event after the end"
            assert self.error is None, "an event after the failure"
            match event:
                case TokenEvent():
                    self.tokens.append(event.id)
                    self.text += "" if event.special else event.text
                case PromptLogprobsEvent(start, logprobs):
                    assert not set(range(start, start + len(logprobs))) & self.prompt_logprobs.keys(), "told twice"
                    self.prompt_logprobs.update(enumerate(logprobs, start))
                case FinishedEvent():
                    self.finished_event = event
                case FailedEvent(error):
                    self.error = error

    def check_output(self, model: SimulatedConfig) -> None:
        """Assert that the whole output was received, once, in order, and belongs to this request."""
        assert self.error is None, f"failed: {self.error!r}"
        assert self.finished_event is not None
        assert (self.tokens, self.text,
                self.finished_event.finish_reason) == compute_expected_output(self.request, model)
        assert (self.finished_event.text, self.finished_event.num_tokens) == (self.text, len(self.tokens))

    def check_partial_output(self, model: SimulatedConfig) -> None:
        """Assert that the tokens received before a failure are right."""
        assert self.tokens == compute_expected_output(self.request, model)[0][:len(self.tokens)]


def make_text_events(text: str, reason: FinishReason = FinishReason.LENGTH) -> list[StreamEvent]:
    """Return the events of a text, one token per letter."""
    tokens = [TokenEvent(ord(letter), letter, -0.5, False) for letter in text]
    return [*tokens,
            FinishedEvent(reason, text, len(tokens),
                          make_finished_timeline(queue_seconds=0.25, prefill_seconds=0.125, decode_seconds=0.375))]
