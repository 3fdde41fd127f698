"""Services that the handlers of all dialects use: the engine, the validator and the settings, and functions that run
requests with them and report their outputs and times."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import monotonic as clock
from typing import Any, TypeVar

from router.config import RouterConfig
from router.engine.engine import Engine
from router.engine.output_stream import (
    FailedEvent,
    FinishedEvent,
    PoolingEvent,
    PromptLogprobsEvent,
    RequestStream,
    TokenEvent,
)
from router.errors import InvalidRequest, Overloaded
from router.http.transport.request_context_and_middleware import RequestContext
from router.http.transport.sse import PumpFlusher
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase
from router.validation.validator import RequestValidator, ValidatedRequest, require_remaining_seconds

T = TypeVar("T")
COMPUTE_TYPE = "gpu+optimized"  # what every LoRAX server sends, whatever its hardware
MIN_REPORTED_WAIT_SECONDS = 0.001  # a shorter wait gets no `x-wait-reason`
MAX_INLINE_TOKENS = 128  # of an output that is parsed or rendered on the event loop
RETRY_SECONDS = 0.05  # between attempts of a request's next group to find room


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model's names and notice, as clients see them."""

    name: str = ""
    notice: str = ""  # what users should know about the model
    other_names: tuple[str, ...] = ()  # that requests may use, too

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.other_names)


@dataclass(slots=True)
class RequestGroupBudget:
    """Number of places that the further groups of all HTTP requests with several may still take: others must find room
    beside any number of such requests."""

    num_left: int


@dataclass(frozen=True, slots=True)
class Services:
    """Services that every dialect uses."""

    engine: Engine
    validator: RequestValidator
    config: RouterConfig
    served_model: ServedModel
    pump_flusher: PumpFlusher
    request_group_budget: RequestGroupBudget

    def submit(self, validated_request: ValidatedRequest, context: RequestContext) -> RequestStream:
        if context.request_span is None:
            return self.engine.submit(validated_request.request, context.arrived_at, "",
                                      validated_request.resumed_text)
        stream = self.engine.submit(validated_request.request, context.arrived_at, context.request_span.traceparent,
                                    validated_request.resumed_text)
        record = self.engine.get_request_record(validated_request.request.id)
        assert record is not None, "it was opened just now"
        context.request_span.add_sequence(validated_request, record)
        return stream

    async def list_adapter_names(self) -> dict[str, str]:
        """Return the names of adapters at their source, by the names that clients use.

        Lists of models are open without a key, so a private adapter is listed only under an alias. If the server has
        API keys, this holds for every adapter: other names would reveal what tenants use.
        """
        registry = self.validator.adapter_registry
        if registry is None:
            return {}
        source_names_by_alias = {name: wanted.name for name, wanted in registry.aliases.items()}
        hidden_names = {*source_names_by_alias.values(), *self.served_model.names}
        if self.config.api_key or self.config.api_keys:
            return source_names_by_alias
        used_names = [wanted.name for wanted, entry in registry.get_entries().items() if not entry.version.is_private]
        return {name: name for name in sorted({*used_names, *await registry.list_local_names()})
                if name not in hidden_names} | source_names_by_alias

    @property
    def is_tgi(self) -> bool:
        """Whether to reproduce quirks of text-generation-inference (--compat tgi)."""
        return self.config.compat == "tgi"

    @property
    def is_lorax(self) -> bool:
        return self.config.compat == "lorax"


class ServiceRoutes:
    """Base class of the handlers of routes that use the services."""

    def __init__(self, services: Services) -> None:
        self._services = services


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Complete output of one choice."""

    validated_request: ValidatedRequest
    tokens: list[TokenEvent]
    prompt_logprobs: list[float | None]  # one per prompt token
    final_event: FinishedEvent
    # as in PromptLogprobsEvent, from the prompt's second token on
    prompt_top_logprobs: Sequence[Sequence[tuple[int, float]]] = ()

    @property
    def num_rendered_tokens(self) -> int:
        """The most tokens that an answer shows, with those of the prompt if it shows their logprobs."""
        request = self.validated_request.request
        return len(self.tokens) + (len(request.prompt) if request.prompt_logprobs else 0)

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob for token in self.tokens) / max(len(self.tokens), 1)


async def run_in_thread_if_long(output: GenerationOutput, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that parses or renders this output. Parsing takes some ten microseconds per token, and rendering
    the logprobs of 20 alternatives a hundred, so that of a long output is done in a thread, off the event loop."""
    if output.num_rendered_tokens <= MAX_INLINE_TOKENS:
        await asyncio.sleep(0)  # a chat may have many choices: other tasks may run between them
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput:
    """Output of a pooling request (embedding or classification)."""

    validated_request: ValidatedRequest
    final_event: PoolingEvent


def reject_resume_token_ids(resume_token_ids: Sequence[int] | None) -> None:
    """Refuse to go on with an output where it is not streamed. Raises InvalidRequest."""
    if resume_token_ids:
        raise InvalidRequest("`resume_token_ids` is given, but only a stream goes on; ask for a stream, or leave it "
                             "out", param="resume_token_ids")


async def collect_output(stream: RequestStream, validated_request: ValidatedRequest) -> GenerationOutput:
    """Return the output of one stream. Its events are collected in a callback, so that this task wakes only once, at
    the end. Raises the request's error if it failed."""
    tokens: list[TokenEvent] = []
    prompt_logprobs: list[float | None] = [None] * len(validated_request.request.prompt)
    prompt_top_logprobs: list[Sequence[tuple[int, float]]] = []
    final_event: asyncio.Future[FinishedEvent] = asyncio.get_running_loop().create_future()

    def collect_events() -> None:
        for event in stream.take_events():
            match event:
                case TokenEvent():
                    tokens.append(event)
                case PromptLogprobsEvent(start, logprobs, top_logprobs):
                    prompt_logprobs[start:start + len(logprobs)] = logprobs
                    prompt_top_logprobs.extend(top_logprobs)
                case FinishedEvent() if not final_event.done():
                    final_event.set_result(event)
                case FailedEvent(error) if not final_event.done():
                    final_event.set_exception(error)

    stream.on_event = collect_events
    collect_events()
    return GenerationOutput(validated_request, tokens, prompt_logprobs, await final_event, prompt_top_logprobs)


async def generate_all(services: Services, validated_requests: Sequence[ValidatedRequest],
                       context: RequestContext) -> list[GenerationOutput]:
    """Return the outputs of all choices. If one fails or the client disconnects, all are cancelled."""
    with ExitStack() as exit_stack:
        streams = [exit_stack.enter_context(closing(services.submit(choice, context)))
                   for choice in validated_requests]
        return await gather_or_cancel(map(collect_output, streams, validated_requests))


class RequestGroupThrottle:
    """Groups of requests that one HTTP request makes. A limited number of groups is submitted at a time, in order; the
    others wait here, where they take no place of other clients' requests. `close` cancels what is unfinished."""

    def __init__(self, services: Services, context: RequestContext, groups: Iterable[Sequence[ValidatedRequest]],
                 max_groups: int) -> None:
        self._services = services
        self._context = context
        self._waiting = deque(enumerate(groups))
        self._max_groups = max_groups
        self._submitted: dict[int, list[RequestStream]] = {}  # unfinished groups, by index
        self._num_budgeted: dict[int, int] = {}  # places of the budget that they take

    def submit(self) -> list[tuple[int, list[RequestStream]]]:
        """Submit the groups that have room, and return their indices and streams. Raises what the engine raises, but
        Overloaded only if no earlier group is unfinished, whose end would make room."""
        submitted: list[tuple[int, list[RequestStream]]] = []
        while self._waiting and len(self._submitted) < self._max_groups:
            index, group = self._waiting[0]
            num_budgeted = len(group) if self._submitted else 0
            if num_budgeted > self._services.request_group_budget.num_left:
                break
            try:
                self._submitted[index] = self._submit_group(group)
            except Overloaded:
                if not self._submitted:
                    raise
                break
            self._services.request_group_budget.num_left -= num_budgeted
            self._num_budgeted[index] = num_budgeted
            submitted.append((index, self._submitted[index]))
            self._waiting.popleft()
        return submitted

    async def _submit_when_possible(self) -> list[tuple[int, list[RequestStream]]]:
        """Submit the groups that have room; while others have all the room and no group is unfinished, wait."""
        while True:
            try:
                return self.submit()
            except Overloaded:
                await asyncio.sleep(RETRY_SECONDS)

    def _close_group(self, index: int) -> None:
        close_streams(self._submitted.pop(index))
        self._services.request_group_budget.num_left += self._num_budgeted.pop(index)

    async def run(self, handle: Callable[[int, Sequence[RequestStream]], Awaitable[object]]) -> None:
        """Call `handle` with the index and the streams of each group, and submit a waiting one when it returns. Raises
        the first failure."""
        submitted = [*self._submitted.items()]
        if len(submitted) == 1 and not self._waiting:
            await handle(*submitted[0])
            return

        async def run_group(index: int, streams: Sequence[RequestStream]) -> None:
            await handle(index, streams)
            self._close_group(index)
            start_tasks(await self._submit_when_possible())

        def start_tasks(groups: Iterable[tuple[int, Sequence[RequestStream]]]) -> None:
            for index, streams in groups:
                tasks.create_task(run_group(index, streams))

        try:
            async with asyncio.TaskGroup() as tasks:
                start_tasks(submitted)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def close(self) -> None:
        for index in [*self._submitted]:
            self._close_group(index)

    def _submit_group(self, group: Sequence[ValidatedRequest]) -> list[RequestStream]:
        streams: list[RequestStream] = []
        try:
            for choice in group:
                streams.append(self._services.submit(self._with_remaining_time(choice), self._context))  # noqa: PERF401 - those before an error are closed
        except Exception:
            close_streams(streams)
            raise
        return streams

    def _with_remaining_time(self, choice: ValidatedRequest) -> ValidatedRequest:
        """Return the request with the time that earlier ones have left to it. Raises TimedOut if there is none."""
        if (deadline := self._context.deadline) is None:
            return choice
        return replace(choice, request=replace(choice.request, timeout=require_remaining_seconds(deadline)))


def close_streams(streams: Iterable[RequestStream]) -> None:
    for stream in streams:
        stream.close()


async def generate_and_sort_by_logprob(services: Services, validated_requests: Sequence[ValidatedRequest],
                                       context: RequestContext) -> list[GenerationOutput]:
    """Return the outputs of all choices, that with the best mean logprob first."""
    outputs = await generate_all(services, validated_requests, context)
    if len(outputs) > 1:
        outputs.sort(key=lambda output: output.mean_logprob, reverse=True)
    return outputs


async def gather_or_cancel(coroutines: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Run coroutines concurrently, return their results. Raises the first failure, not an ExceptionGroup."""
    coroutine_list = [*coroutines]
    if len(coroutine_list) == 1:
        return [await coroutine_list[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in coroutine_list]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def timing_headers(outputs: Sequence[GenerationOutput | PoolingRequestOutput], validation_seconds: float,
                   total_seconds: float, num_choices: int = 1) -> dict[str, str]:
    """Return the timing headers; with several outputs, the sums over all of them, in which a prompt counts once for its
    `num_choices`. The header `x-wait-reason` names the phase of most of the waiting time, if there was any."""
    seconds_by_phase = sum_seconds_by_phase(outputs)
    num_prompt_tokens = sum([len(output.validated_request.request.prompt) for output in outputs[::num_choices]])
    num_tokens = num_cached_tokens = 0
    for output in outputs:
        num_tokens += output.final_event.num_tokens
        num_cached_tokens += output.final_event.timeline.num_prefix_hit_tokens
    waiting_seconds = {phase: seconds for phase, seconds in seconds_by_phase.items() if phase not in RUNNING_PHASES}
    prefill, decode = seconds_by_phase.get(RequestPhase.PREFILL, 0.0), seconds_by_phase.get(RequestPhase.DECODE, 0.0)
    queue, inference = math.fsum(waiting_seconds.values()), prefill + decode
    headers = {
        "x-compute-time": str(total_seconds),
        "x-total-time": str(int(total_seconds * 1000)),
        "x-validation-time": str(int(validation_seconds * 1000)),
        "x-queue-time": str(int(queue * 1000)),
        "x-inference-time": str(int(inference * 1000)),
        "x-time-per-token": str(int(inference / max(num_tokens, 1) * 1000)),
        "x-prompt-tokens": str(num_prompt_tokens),
        "x-generated-tokens": str(num_tokens),
        "x-queue-ms": f"{queue * 1000:.1f}",
        "x-prefill-ms": f"{prefill * 1000:.1f}",
        "x-decode-ms": f"{decode * 1000:.1f}",
        "x-cached-tokens": str(num_cached_tokens),
    }
    longest = max(waiting_seconds, key=waiting_seconds.__getitem__, default=None)
    if longest is not None and waiting_seconds[longest] >= MIN_REPORTED_WAIT_SECONDS:
        headers["x-wait-reason"] = str(longest)
    return headers


def sum_seconds_by_phase(outputs: Sequence[GenerationOutput | PoolingRequestOutput]) -> Mapping[RequestPhase, float]:
    now, sums = clock(), dict[RequestPhase, float]()
    for output in outputs:
        for phase, seconds in output.final_event.timeline.seconds_by_phase(now).items():
            sums[phase] = sums.get(phase, 0.0) + seconds
    return sums
