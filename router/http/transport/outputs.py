"""Outputs of requests: waits for the events of a stream and collects them as a `GenerationOutput` or a
`PoolingRequestOutput`.
"""

import asyncio
from dataclasses import dataclass

from router.engine.stream import (
    FailedEvent,
    FinishedEvent,
    PoolingEvent,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
)
from router.validation.validator import ValidatedRequest


def float32_json(value: float | None) -> str:
    """Render a 32-bit float. Nine digits tell all such numbers apart. JSON has no infinities: the logprob of an
    excluded token becomes null."""
    return f"{value:.9g}" if value is not None and value - value == 0 else "null"


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Complete output of one choice."""

    validated_request: ValidatedRequest
    tokens: list[TokenEvent]
    prompt_logprobs: list[float | None]  # one per prompt token
    final_event: FinishedEvent

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob for token in self.tokens) / max(len(self.tokens), 1)


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput:
    """Output of a pooling request (embedding or classification)."""

    validated_request: ValidatedRequest
    final_event: PoolingEvent


async def wait_for_pooling_output(stream: RequestStream, validated_request: ValidatedRequest) -> PoolingRequestOutput:
    """Wait for the output of a pooling request. Raises the request's error if it failed."""
    while True:
        for event in await stream.wait_for_events():
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, PoolingEvent):
                return PoolingRequestOutput(validated_request, event)


class OutputCollector:
    """Collects the events of one stream in a callback, so that the waiting task wakes only once, at the end."""

    def __init__(self, stream: RequestStream, validated_request: ValidatedRequest) -> None:
        self._stream = stream
        self._validated_request = validated_request
        self._tokens: list[TokenEvent] = []
        self._prompt_logprobs: list[float | None] = [None] * len(validated_request.request.prompt)
        self._final_event: asyncio.Future[FinishedEvent] = asyncio.get_running_loop().create_future()

    async def wait_for_output(self) -> GenerationOutput:
        """Wait for the end and return the output. Raises the request's error if it failed."""
        self._stream.set_event_callback(self._collect_events)
        self._collect_events()
        final_event = await self._final_event
        return GenerationOutput(self._validated_request, self._tokens, self._prompt_logprobs, final_event)

    def _collect_events(self) -> None:
        for event in self._stream.take_events():
            match event:
                case TokenEvent():
                    self._tokens.append(event)
                case PromptLogprobsEvent(start, logprobs):
                    self._prompt_logprobs[start:start + len(logprobs)] = logprobs
                case FinishedEvent() if not self._final_event.done():
                    self._final_event.set_result(event)
                case FailedEvent(error) if not self._final_event.done():
                    self._final_event.set_exception(error)
