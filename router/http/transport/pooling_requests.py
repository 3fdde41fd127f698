"""Pooling requests (embedding, classification): run many texts with bounded concurrency, build results and headers.

All texts of a request are validated before the first is run, and at most `compute_max_concurrent_texts` are submitted
at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import monotonic as clock
from typing import Generic, TypeVar

from aiohttp import web

from router.config import RouterConfig
from router.engine.stream import RequestStream
from router.errors import Overloaded
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import (
    COMPUTE_TYPE,
    PoolingRequestOutput,
    Services,
    gather_or_cancel,
    timing_headers,
    wait_for_pooling_output,
)
from router.validation.validator import GenerationInput, ValidatedRequest, remaining_seconds

MAX_CONCURRENT_TEXTS = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PoolingResults(Generic[T]):
    """Results of the texts, in their order; their total number of tokens; the response headers."""

    results: list[T]
    num_tokens: int
    headers: dict[str, str]


async def run_pooling_requests(services: Services, request: web.Request, context: RequestContext,
                               inputs: Iterable[GenerationInput],
                               build_result: Callable[[int, PoolingRequestOutput], T]) -> PoolingResults[T]:
    """Run each text as a request of its own; `build_result` builds a result from its index and output. If one fails or
    the client disconnects, all are cancelled."""
    validated_requests = await validate_inputs(services, inputs)
    validated_at = clock()
    workers = PoolingRequestRunner(services, context, validated_requests, build_result)
    results = await workers.run()
    total_seconds = clock() - context.arrived_at
    headers = (response_headers(request, services.engine.model_info,
                                sum(choice.num_prompt_characters for choice in validated_requests))
               | timing_headers(workers.finished_outputs, validated_at - context.arrived_at, total_seconds))
    if services.is_lorax:
        headers |= {"x-compute-type": COMPUTE_TYPE, "x-compute-time": str(int(total_seconds * 1000))}
    return PoolingResults(results, sum(len(choice.request.prompt) for choice in validated_requests), headers)


async def validate_inputs(services: Services, inputs: Iterable[GenerationInput]) -> list[ValidatedRequest]:
    """Validate all texts. Short ones are tokenised on the event loop, so other tasks may run after each."""
    validated_requests: list[ValidatedRequest] = []
    for pooling_input in inputs:
        if validated_requests:
            await asyncio.sleep(0)
        validated_requests += await services.validator.validate(pooling_input)
    return validated_requests


def compute_max_concurrent_texts(config: RouterConfig) -> int:
    """Return how many texts of one request may run at once: a quarter of --max-concurrent-requests, or
    --max-client-batch-size if that is more, but at most MAX_CONCURRENT_TEXTS."""
    return min(MAX_CONCURRENT_TEXTS, max(config.max_client_batch_size, config.max_concurrent_requests // 4))


class PoolingRequestRunner(Generic[T]):
    """Runs the texts of one HTTP request as pooling requests, a limited number at a time, and builds a result from each
    output.
    """

    def __init__(self, services: Services, context: RequestContext, validated_requests: Sequence[ValidatedRequest],
                 build_result: Callable[[int, PoolingRequestOutput], T]) -> None:
        """`build_result` is called as soon as the output of a text arrives, and the output is then dropped: a vector
        takes much more memory than its JSON."""
        self.finished_outputs: list[PoolingRequestOutput] = []  # finished texts, without their outputs
        self._services = services
        self._context = context
        self._build_result = build_result
        self._results: dict[int, T] = {}
        self._queue = deque(enumerate(validated_requests))
        self._num_in_flight = 0

    async def run(self) -> list[T]:
        num_texts = len(self._queue)
        await gather_or_cancel(self._run_worker()
                               for _ in range(min(num_texts, compute_max_concurrent_texts(self._services.config))))
        return [self._results[index] for index in range(num_texts)]

    async def _run_worker(self) -> None:
        """Run texts until none is left. On Overloaded put the text back and end, leaving it to the other workers; raise
        if none of them has a text under way."""
        while self._queue:
            index, validated_request = self._queue.popleft()
            try:
                stream = self._submit(validated_request)
            except Overloaded:
                if not self._num_in_flight:
                    raise
                self._queue.appendleft((index, validated_request))
                return
            output = await self._wait_for_output(stream, validated_request)
            self._results[index] = self._build_result(index, output)
            self.finished_outputs.append(replace(output, final_event=replace(output.final_event, output=[])))

    def _submit(self, validated_request: ValidatedRequest) -> RequestStream:
        """Submit a text with the time left until the deadline, after earlier texts used a part of it."""
        if self._context.deadline is not None:
            validated_request = replace(validated_request,
                                        request=replace(validated_request.request,
                                                        timeout=remaining_seconds(self._context.deadline)))
        return self._services.submit(validated_request, self._context)

    async def _wait_for_output(self, stream: RequestStream,
                               validated_request: ValidatedRequest) -> PoolingRequestOutput:
        self._num_in_flight += 1
        try:
            with closing(stream):
                return await wait_for_pooling_output(stream, validated_request)
        finally:
            self._num_in_flight -= 1
