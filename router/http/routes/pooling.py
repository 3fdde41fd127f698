"""Pooling requests: embeddings (LoRAX's `/embed`, OpenAI's `/v1/embeddings`) and entities in texts, from the labels of
their tokens (LoRAX's `/classify` and `/classify_batch`).

All texts of a request are validated before the first is run, and at most `compute_max_concurrent_texts` are submitted
at a time. The numbers of texts and `dimensions` are checked here, all other limits by the validator.
"""

import asyncio
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quoted
from math import fsum, sqrt
from struct import pack
from time import monotonic as clock
from typing import Annotated, Any, Generic, Literal, TypeVar

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.adapters.reference import RequestedAdapter
from router.config import RouterConfig
from router.engine.stream import RequestStream
from router.errors import InvalidRequest, Overloaded
from router.http.tgi.rendering import float32_json
from router.http.transport.adapter_parameters import AdapterParameters
from router.http.transport.body import RequestBody, UInt32, json_response, json_text_response, read_body
from router.http.transport.request_context import RequestContext, response_headers
from router.http.transport.services import (
    COMPUTE_TYPE,
    PoolingRequestOutput,
    Services,
    gather_or_cancel,
    timing_headers,
    wait_for_pooling_output,
)
from router.pooling_output import EmbeddingVector, TokenClassificationOutput
from router.request import RequestKind
from router.telemetry.spans import CLASSIFICATION_OPERATION, EMBEDDINGS_OPERATION
from router.text.entity_aggregation import Entity, EntityAggregator
from router.text.prompt_encoder import DialectParameterNames, RawPrompt
from router.validation.bounds import AT_LEAST_ONE, NON_EMPTY_TEXT, NON_EMPTY_TEXTS, NON_EMPTY_TEXTS_OR_TOKENS
from router.validation.validator import GenerationInput, ValidatedRequest, remaining_seconds

MAX_CONCURRENT_TEXTS = 32

T = TypeVar("T")
PARAMETER_NAMES = DialectParameterNames(prompt="input", truncate="")
EMBED_PARAMETER_NAMES = DialectParameterNames(truncate="")
MAX_TEXTS = 2048  # OpenAI's limit
PARAMETER_NAMES = DialectParameterNames(truncate="")


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


class EmbedParameters(AdapterParameters):
    """The field `parameters` of embedding requests: the adapter to use."""

    def checked_adapter_reference(self, source_token: str) -> RequestedAdapter | None:
        """Return the adapter that the request names, if any. Raises InvalidRequest."""
        if self.adapter_id and self.merged_adapters is not None:
            raise InvalidRequest("at most one of `adapter_id` or `merged_adapters` may be given")
        return self.adapter_reference(source_token)


class EmbedRequest(RequestBody):
    """Body of LoRAX's `/embed`: one text."""

    inputs: Annotated[str, NON_EMPTY_TEXT]
    parameters: EmbedParameters | None = None

    def to_pooling_input(self, context: RequestContext) -> GenerationInput:
        return create_embedding_input(self.inputs, EMBED_PARAMETER_NAMES, self.parameters, context)


def wrap_single_input(value: object) -> object:
    """Wrap a single text, or a single list of token ids, in a list."""
    is_single = isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], int))
    return [value] if is_single else value


TokenIds = Annotated[list[UInt32], Field(min_length=1)]
EmbeddingInputs = Annotated[
    list[str | TokenIds], FailFast(), Field(min_length=1),
    BeforeValidator(wrap_single_input, json_schema_input_type=str | TokenIds | list[str | TokenIds])]


class EmbeddingsRequest(RequestBody):
    """One or several texts to embed. Null means that a field is not given."""

    input: Annotated[EmbeddingInputs, NON_EMPTY_TEXTS_OR_TOKENS]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    parameters: EmbedParameters | None = None

    def check_limits(self) -> None:
        if len(self.input) > MAX_TEXTS:
            raise InvalidRequest(f"`input` must hold at most {MAX_TEXTS} texts, got {len(self.input)}",
                                 "batch size exceeded")
        if self.dimensions == 0:
            raise InvalidRequest("`dimensions` must be at least 1, got 0")

    def to_pooling_inputs(self, context: RequestContext) -> list[GenerationInput]:
        return [create_embedding_input(text if isinstance(text, str) else tuple(text), PARAMETER_NAMES, self.parameters,
                                       context.for_prompt(index))
                for index, text in enumerate(self.input)]

    def embedding_row_json(self, index: int, output: PoolingRequestOutput) -> str:
        return (f'{{"object":"embedding","index":{index},'
                f'"embedding":{self._vector_value_json(get_output_vector(output))}}}')

    def _vector_value_json(self, vector: EmbeddingVector) -> str:
        truncated = vector if self.dimensions is None else truncate_vector(vector, self.dimensions)
        if self.encoding_format == "base64":
            return f'"{b64encode(pack(f"<{len(truncated)}f", *truncated)).decode()}"'
        return vector_json(truncated)


class EmbeddingRoutes:
    """Handlers of `/embed` and `/v1/embeddings`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/embed", self.embed), web.post("/v1/embeddings", self.embeddings)]

    async def embed(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embed_request = await read_body(request, EmbedRequest)
        pooling_results = await run_pooling_requests(self._services, request, context,
                                                     [embed_request.to_pooling_input(context)],
                                                     lambda _, said: get_output_vector(said))
        return json_text_response(f'{{"embeddings":{vector_json(pooling_results.results[0])}}}',
                                  pooling_results.headers)

    async def embeddings(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embeddings_request = await read_body(request, EmbeddingsRequest)
        embeddings_request.check_limits()
        pooling_results = await run_pooling_requests(self._services, request, context,
                                                     embeddings_request.to_pooling_inputs(context),
                                                     embeddings_request.embedding_row_json)
        return json_text_response(self._response_json(",".join(pooling_results.results), pooling_results.num_tokens),
                                  pooling_results.headers)

    def _response_json(self, rows: str, num_tokens: int) -> str:
        if self._services.is_lorax:
            return f'{{"embeddings":[{rows}]}}'
        return (f'{{"object":"list","data":[{rows}],"model":{quoted(self._services.served_model.name)},'
                f'"usage":{{"prompt_tokens":{num_tokens},"total_tokens":{num_tokens}}}}}')


def create_embedding_input(text: RawPrompt, parameter_names: DialectParameterNames, parameters: EmbedParameters | None,
                           context: RequestContext) -> GenerationInput:
    return GenerationInput(prompt=text, kind=RequestKind.EMBED, parameter_names=parameter_names, tenant=context.tenant,
                           request_id=context.request_id,
                           adapter=(None if parameters is None
                                    else parameters.checked_adapter_reference(context.source_token)),
                           deadline=context.deadline)


def get_output_vector(output: PoolingRequestOutput) -> EmbeddingVector:
    assert not isinstance(output.final_event.output, TokenClassificationOutput)
    return output.final_event.output


def vector_json(vector: EmbeddingVector) -> str:
    return f"[{','.join(map(float32_json, vector))}]"


def truncate_vector(vector: EmbeddingVector, length: int) -> EmbeddingVector:
    """Return the first `length` values, normalised to unit length. Raises InvalidRequest."""
    if length > len(vector):
        raise InvalidRequest(f"`dimensions` must be at most {len(vector)} with this model, got {length}")
    norm = sqrt(fsum(value * value for value in vector[:length]))
    return [value / norm if norm else value for value in vector[:length]]


class ClassifyRequest(RequestBody):
    """Body of `/classify`: one text."""

    inputs: Annotated[str, NON_EMPTY_TEXT]


class ClassifyBatchRequest(RequestBody):
    """Body of `/classify_batch`: several texts."""

    inputs: Annotated[list[str], FailFast(), Field(min_length=1), NON_EMPTY_TEXTS]

    def check_batch_size(self, max_texts: int) -> None:
        if len(self.inputs) > max_texts:
            raise InvalidRequest(f"`inputs` must hold at most {max_texts} texts (--max-client-batch-size), "
                                 f"got {len(self.inputs)}", "batch size exceeded")


class ClassifyRoutes:
    """Handlers of `/classify` and `/classify_batch`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._entities = EntityAggregator(services.engine.model_info.labels, services.validator.tokenizer)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/classify", self.classify), web.post("/classify_batch", self.classify_batch)]

    async def classify(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, CLASSIFICATION_OPERATION)
        classify_request = await read_body(request, ClassifyRequest)
        pooling_results = await self._classify_texts(request, [classify_request.inputs], context)
        return json_response(pooling_results.results[0], pooling_results.headers)

    async def classify_batch(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, CLASSIFICATION_OPERATION)
        classify_request = await read_body(request, ClassifyBatchRequest)
        classify_request.check_batch_size(self._services.config.max_client_batch_size)
        pooling_results = await self._classify_texts(request, classify_request.inputs, context)
        return json_response(pooling_results.results, pooling_results.headers)

    async def _classify_texts(self, request: web.Request, texts: Sequence[str],
                              context: RequestContext) -> PoolingResults[list[dict[str, Any]]]:
        """Return the entities of each text, in order."""
        inputs = [create_classification_input(text, context.for_prompt(index)) for index, text in enumerate(texts)]
        return await run_pooling_requests(self._services, request, context, inputs,
                                          lambda index, said: self._entities_json(texts[index], said))

    def _entities_json(self, text: str, output: PoolingRequestOutput) -> list[dict[str, Any]]:
        validated_request, token_labels = output.validated_request, output.final_event.output
        assert isinstance(token_labels, TokenClassificationOutput)
        return [entity_json(entity) for entity in self._entities.find_entities(
            text, validated_request.request.prompt, validated_request.char_ranges, token_labels)]


def create_classification_input(text: str, context: RequestContext) -> GenerationInput:
    return GenerationInput(prompt=text, kind=RequestKind.CLASSIFY, parameter_names=PARAMETER_NAMES,
                           tenant=context.tenant, request_id=context.request_id, deadline=context.deadline)


def entity_json(entity: Entity) -> dict[str, Any]:
    """Return an entity in LoRAX's format, which has words in lower case."""
    return {"entity_group": entity.group, "score": entity.score, "word": entity.word.lower(), "start": entity.start,
            "end": entity.end}
