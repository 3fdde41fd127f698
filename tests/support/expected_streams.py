"""Requests, the output that the simulated model must give them, and the output that a client received."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.simulated_world import expected_tokens

from router.engine.stream import Event, FailedEvent, FinishedEvent, PromptEvent, Stream, TokenEvent
from router.request import FinishReason, Request
from router.scheduler.timeline import Cause, Story
from shard.config import SimulatedConfig

END = 256

ids = count()


def ask(prompt: str = "a loom", length: int = 12, **more: Any) -> Request:
    return Request(f"{next(ids)}", tuple(prompt.encode()), length, end_tokens=frozenset([END]), **more)


def expected(request: Request, model: SimulatedConfig) -> tuple[list[int], str, FinishReason]:
    """Return the tokens, text and finish reason of a request that runs undisturbed."""
    said: list[int] = []
    text = ""
    for token in expected_tokens(request, request.max_new_tokens, model):
        said.append(token)
        text += chr(token) if token < END else ""
        if len(said) < request.max_new_tokens and token in request.end_tokens:
            return said, text, FinishReason.END_TOKEN
        if len(said) < request.max_new_tokens and text.endswith(request.stop_strings or ("\0",)):
            return said, text, FinishReason.STOP_STRING
    return said, text, FinishReason.LENGTH


def lived(queue: float = 0.0, prefill: float = 0.0, decode: float = 0.0) -> Story:
    """Return the story of a finished request that spent these seconds in each phase."""
    story = Story(0.0)
    story.turn(Cause.PREFILL, queue)
    story.turn(Cause.DECODE, queue + prefill)
    story.end(queue + prefill + decode)
    return story


@dataclass(slots=True)
class Heard:
    request: Request
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    prompt_logprobs: dict[int, float] = field(default_factory=dict)
    end: FinishedEvent | None = None
    error: Exception | None = None

    @classmethod
    async def all_of(cls, stream: Stream) -> "Heard":
        heard = cls(stream.request)
        while heard.end is None and heard.error is None:
            heard.take(await stream.events())
        return heard

    def take(self, events: list[Any]) -> None:
        for event in events:
            assert self.end is None, "an event after the end"
            assert self.error is None, "an event after the failure"
            match event:
                case TokenEvent():
                    self.tokens.append(event.id)
                    self.text += "" if event.special else event.text
                case PromptEvent(start, logprobs):
                    assert not set(range(start, start + len(logprobs))) & self.prompt_logprobs.keys(), "told twice"
                    self.prompt_logprobs.update(enumerate(logprobs, start))
                case FinishedEvent():
                    self.end = event
                case FailedEvent(error):
                    self.error = error

    def check(self, model: SimulatedConfig) -> None:
        """Assert that the whole output was received, once, in order, and belongs to this request."""
        assert self.error is None, f"failed: {self.error!r}"
        assert self.end is not None
        assert (self.tokens, self.text, self.end.reason) == expected(self.request, model)
        assert (self.end.text, self.end.num_tokens) == (self.text, len(self.tokens))

    def check_beginning(self, model: SimulatedConfig) -> None:
        """Assert that the tokens received before a failure are right."""
        assert self.tokens == expected(self.request, model)[0][:len(self.tokens)]


def said(text: str, reason: FinishReason = FinishReason.LENGTH) -> list[Event]:
    """Return the events of a text, one token per letter."""
    tokens = [TokenEvent(ord(letter), letter, -0.5, False) for letter in text]
    return [*tokens, FinishedEvent(reason, text, len(tokens), lived(queue=0.25, prefill=0.125, decode=0.375))]
