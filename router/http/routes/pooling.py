"""Pooling requests: embeddings (LoRAX's `/embed`, OpenAI's `/v1/embeddings`) and entities in texts, from the labels of
their tokens (LoRAX's `/classify` and `/classify_batch`).

All texts of a request are validated before the first is run, and at most `compute_max_concurrent_texts` are submitted
at a time. The numbers of texts and `dimensions` are checked here, all other limits by the validator.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from math import fsum, sqrt
from struct import pack
from time import monotonic as clock
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from aiohttp import web
from pydantic import FailFast, Field

from router.adapters.reference import AdapterReference
from router.config import RouterConfig
from router.engine.output_stream import FailedEvent, PoolingEvent, RequestStream
from router.errors import InvalidRequest
from router.http.openai.requests import OpenAIBaseRequest, name_known_models
from router.http.tgi.rendering import float32_json
from router.http.transport.body import (
    NOT_GIVEN,
    AdapterParameters,
    LenientBodyModel,
    ListJson,
    RefusedFields,
    TextsOrTokens,
    UInt32,
    json_list_response,
    json_response,
    json_text_response,
    read_body,
)
from router.http.transport.request_context_and_middleware import RequestContext, response_headers
from router.http.transport.services import (
    COMPUTE_TYPE,
    PoolingRequestOutput,
    RequestGroupThrottle,
    ServiceRoutes,
    Services,
    timing_headers,
)
from router.request import EmbeddingVector, RequestKind, TokenClassificationOutput
from router.telemetry.spans import CLASSIFICATION_OPERATION, EMBEDDINGS_OPERATION
from router.text.entity_aggregation import find_entities
from router.text.prompt_encoder import DialectParameterNames, RawPrompt
from router.validation.bounds import (
    AT_LEAST_ONE,
    FALSE,
    NON_EMPTY_TEXT,
    NON_EMPTY_TEXTS,
    NON_EMPTY_TEXTS_OR_TOKENS,
    NULL,
)
from router.validation.validator import GenerationInput, ValidatedRequest

MAX_CONCURRENT_TEXTS = 32

T = TypeVar("T")
INPUT_PARAMETER_NAMES = DialectParameterNames(prompt="input", truncate="")
TEXT_PARAMETER_NAMES = DialectParameterNames(truncate="")
MAX_TEXTS = 2048  # OpenAI's limit


async def run_pooling_requests(
    services: Services, request: web.Request, context: RequestContext, inputs: Iterable[GenerationInput],
    build_result: Callable[[int, PoolingRequestOutput], T]) -> tuple[list[T], dict[str, str], int]:
    """Run each text as a request of its own; `build_result` builds a result from its index and output. Return the
    results in the order of the texts, the response headers and the number of prompt tokens. If one text fails or the
    client disconnects, all are cancelled."""
    validated_requests: list[ValidatedRequest] = []
    for pooling_input in inputs:
        if validated_requests:  # short texts are tokenized on the event loop: other tasks may run after each
            await asyncio.sleep(0)
        validated_requests += await services.validator.validate(pooling_input)
    validated_at = clock()
    results, outputs = dict[int, T](), list[PoolingRequestOutput]()

    async def build_result_of_text(index: int, streams: Sequence[RequestStream]) -> None:
        """Build the result as soon as the output arrives, and drop the output: a vector takes much more memory than its
        JSON."""
        event = await wait_for_pooling_event(streams[0])
        results[index] = build_result(index, PoolingRequestOutput(validated_requests[index], event))
        outputs.append(PoolingRequestOutput(validated_requests[index], replace(event, output=[])))

    with closing(RequestGroupThrottle(services, context, [[choice] for choice in validated_requests],
                                      compute_max_concurrent_texts(services.config))) as runner:
        runner.submit()
        await runner.run(build_result_of_text)
    total_seconds = clock() - context.arrived_at
    headers = (response_headers(request, services.engine.model_info,
                                sum(choice.num_prompt_characters for choice in validated_requests))
               | timing_headers(outputs, validated_at - context.arrived_at, total_seconds))
    if services.is_lorax:
        headers |= {"x-compute-type": COMPUTE_TYPE, "x-compute-time": str(int(total_seconds * 1000))}
    return ([results[index] for index in range(len(results))], headers,
            sum(len(choice.request.prompt) for choice in validated_requests))


def compute_max_concurrent_texts(config: RouterConfig) -> int:
    """Return how many texts of one request may run at once: a quarter of --max-concurrent-requests, or
    --max-client-batch-size if that is more, but at most MAX_CONCURRENT_TEXTS."""
    return min(MAX_CONCURRENT_TEXTS, max(config.max_client_batch_size, config.max_concurrent_requests // 4))


async def wait_for_pooling_event(stream: RequestStream) -> PoolingEvent:
    """Wait for the output of a pooling request. Raises the request's error if it failed."""
    while True:
        for event in await stream.wait_for_events():
            if isinstance(event, FailedEvent):
                raise event.error
            if isinstance(event, PoolingEvent):
                return event


class EmbedParameters(AdapterParameters):
    """The field `parameters` of embedding requests: the adapter to use."""


class EmbedRequest(LenientBodyModel):
    """Body of LoRAX's `/embed`: one text."""

    inputs: Annotated[str, NON_EMPTY_TEXT]
    parameters: EmbedParameters | None = None


class EmbeddingsRequest(LenientBodyModel):
    """One or several texts to embed. Null means that a field is not given."""

    ignored_fields = frozenset({"cache_salt", "padding", "priority", "request_id", "truncation_side", "user"})
    refused_fields: ClassVar[RefusedFields] = {  # of vLLM
        "add_special_tokens": (None, True), "embed_dtype": (None, "float32"), "endianness": (None, "native", "little"),
        "mm_processor_kwargs": NOT_GIVEN, "truncate_prompt_tokens": (None,), "use_activation": (None,)}

    input: Annotated[TextsOrTokens, NON_EMPTY_TEXTS_OR_TOKENS]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    parameters: EmbedParameters | None = None

    def find_model_adapter(self, services: Services, source_token: str) -> AdapterReference | None:
        """Return the adapter that `model` names, which LoRAX ignores, unless `parameters` name one or the model."""
        parameters = self.parameters or EmbedParameters()
        if services.is_lorax or parameters.adapter_id is not None or parameters.merged_adapters is not None:
            return None
        return OpenAIBaseRequest(model=self.model, adapter_source=parameters.adapter_source,
                                 api_token=parameters.api_token).adapter_reference(services, source_token)

    def to_pooling_inputs(self, context: RequestContext,
                          model_adapter: AdapterReference | None = None) -> list[GenerationInput]:
        self.check_refused_fields()
        inputs = create_embedding_inputs(self.input, self.dimensions, INPUT_PARAMETER_NAMES, context, self.parameters)
        return inputs if model_adapter is None else [replace(each, adapter=model_adapter) for each in inputs]

    def embedding_row_json(self, index: int, output: PoolingRequestOutput) -> str:
        vector = get_output_vector(output)
        if self.dimensions is not None:
            vector = truncate_vector(vector, self.dimensions)
        value = (f'"{b64encode(pack(f"<{len(vector)}f", *vector)).decode()}"' if self.encoding_format == "base64"
                 else vector_json(vector))
        return f'{{"object":"embedding","index":{index},"embedding":{value}}}'


class FeatureExtractionRequest(LenientBodyModel):
    """Body of `/` for a model that only makes embeddings: text-embeddings-inference's, which the Hub's client sends."""

    inputs: Annotated[TextsOrTokens, NON_EMPTY_TEXTS_OR_TOKENS]
    dimensions: Annotated[UInt32 | None, AT_LEAST_ONE] = None
    normalize: bool | None = None  # None: as the model's folder says
    truncate: Annotated[bool | None, FALSE] = None
    prompt_name: Annotated[str | None, NULL] = None

    def check_supported(self) -> None:
        """Raises InvalidRequest."""
        if self.truncate:
            raise InvalidRequest("`truncate` must be false, got true: texts are never cut here")
        if self.prompt_name is not None:
            raise InvalidRequest("`prompt_name` is given, but there are no named prompts here; put the prompt in front "
                                 "of the text")
        if self.dimensions is not None and self.normalize is False:
            raise InvalidRequest("`normalize` must not be false with `dimensions`: cut vectors have unit length")

    def vector_row_json(self, _: int, output: PoolingRequestOutput) -> str:
        vector = get_output_vector(output)
        return vector_json(truncate_vector(vector, self.dimensions or len(vector))
                           if self.normalize or self.dimensions is not None else vector)


class ClassifyRequest(LenientBodyModel):
    """Body of `/classify`: one text."""

    inputs: Annotated[str, NON_EMPTY_TEXT]


class ClassifyBatchRequest(LenientBodyModel):
    """Body of `/classify_batch`: several texts."""

    inputs: Annotated[list[str], FailFast(), Field(min_length=1), NON_EMPTY_TEXTS]


class PoolingRoutes(ServiceRoutes):
    """Handlers of `/embed`, `/v1/embeddings`, `/classify` and `/classify_batch`, and for models that only make
    embeddings of `/`."""

    def root_routes(self) -> list[web.RouteDef]:
        """Return the route `/` of a model that only makes embeddings. LoRAX's clients expect a generation there."""
        is_only_embedding = self._services.engine.model_info.supported_kinds == (RequestKind.EMBED,)
        return [web.post("/", self.extract_features)] if is_only_embedding and not self._services.is_lorax else []

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/embed", self.embed), web.post("/v1/embeddings", self.embeddings),
                web.post("/classify", self.classify), web.post("/classify_batch", self.classify_batch)]

    async def embed(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embed_request = await read_body(request, EmbedRequest)
        embedding_input = create_embedding_input(embed_request.inputs, TEXT_PARAMETER_NAMES, embed_request.parameters,
                                                 context)
        [vector], headers, _ = await run_pooling_requests(self._services, request, context, [embedding_input],
                                                          lambda _, said: get_output_vector(said))
        return json_text_response(f'{{"embeddings":{vector_json(vector)}}}', headers)

    async def extract_features(self, request: web.Request) -> web.StreamResponse:
        """Return a list of vectors, also for a single text."""
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        features_request = await read_body(request, FeatureExtractionRequest)
        features_request.check_supported()
        inputs = create_embedding_inputs(features_request.inputs, features_request.dimensions, TEXT_PARAMETER_NAMES,
                                         context)
        rows, headers, _ = await run_pooling_requests(self._services, request, context, inputs,
                                                      features_request.vector_row_json)
        return await json_list_response(request, ListJson("[", rows, "]"), headers,
                                        self._services.config.slow_client_timeout)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        embeddings_request = await read_body(request, EmbeddingsRequest)
        model_adapter = embeddings_request.find_model_adapter(self._services, context.source_token)
        async with (nullcontext() if model_adapter is None
                    else name_known_models(self._services, embeddings_request.model)):
            results, headers, num_tokens = await run_pooling_requests(
                self._services, request, context, embeddings_request.to_pooling_inputs(context, model_adapter),
                embeddings_request.embedding_row_json)
        model_name = self._services.served_model.name if model_adapter is None else model_adapter.name
        answer = (ListJson('{"embeddings":[', results, "]}") if self._services.is_lorax else ListJson(
            '{"object":"list","data":[', results, f'],"model":{quoted(model_name)},'
            f'"usage":{{"prompt_tokens":{num_tokens},"total_tokens":{num_tokens}}}}}'))
        return await json_list_response(request, answer, headers, self._services.config.slow_client_timeout)

    async def classify(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, CLASSIFICATION_OPERATION)
        classify_request = await read_body(request, ClassifyRequest)
        [entities], headers = await self._classify_texts(request, [classify_request.inputs], context)
        return json_response(entities, headers)

    async def classify_batch(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, CLASSIFICATION_OPERATION)
        classify_request = await read_body(request, ClassifyBatchRequest)
        if len(classify_request.inputs) > (max_texts := self._services.config.max_client_batch_size):
            raise InvalidRequest(f"`inputs` must hold at most {max_texts} texts (--max-client-batch-size), "
                                 f"got {len(classify_request.inputs)}", "batch size exceeded")
        return json_response(*await self._classify_texts(request, classify_request.inputs, context))

    async def _classify_texts(self, request: web.Request, texts: Sequence[str],
                              context: RequestContext) -> tuple[list[list[dict[str, Any]]], dict[str, str]]:
        """Return the entities of each text, in order, and the response headers."""
        inputs = [GenerationInput(prompt=text, kind=RequestKind.CLASSIFY, parameter_names=TEXT_PARAMETER_NAMES,
                                  tenant=context.tenant, request_id=context.for_prompt(index).request_id,
                                  deadline=context.deadline)
                  for index, text in enumerate(texts)]
        entities, headers, _ = await run_pooling_requests(
            self._services, request, context, inputs, lambda index, output: self._entities_json(texts[index], output))
        return entities, headers

    def _entities_json(self, text: str, output: PoolingRequestOutput) -> list[dict[str, Any]]:
        """Return the entities in LoRAX's format, which has words in lower case."""
        validated_request, token_labels = output.validated_request, output.final_event.output
        assert isinstance(token_labels, TokenClassificationOutput)
        return [{"entity_group": entity.group, "score": entity.score, "word": entity.word.lower(),
                 "start": entity.start, "end": entity.end}
                for entity in find_entities(
                    text, validated_request.request.prompt, validated_request.char_ranges, token_labels,
                    label_names=self._services.engine.model_info.labels, tokenizer=self._services.validator.tokenizer)]


def create_embedding_inputs(texts: Sequence[str | list[int]], dimensions: int | None,
                            parameter_names: DialectParameterNames, context: RequestContext,
                            parameters: EmbedParameters | None = None) -> list[GenerationInput]:
    """Raises InvalidRequest."""
    if len(texts) > MAX_TEXTS:
        raise InvalidRequest(f"`{parameter_names.prompt}` must hold at most {MAX_TEXTS} texts, got {len(texts)}",
                             "batch size exceeded")
    if dimensions == 0:
        raise InvalidRequest("`dimensions` must be at least 1, got 0")
    return [create_embedding_input(text if isinstance(text, str) else tuple(text), parameter_names, parameters,
                                   context.for_prompt(index))
            for index, text in enumerate(texts)]


def create_embedding_input(text: RawPrompt, parameter_names: DialectParameterNames, parameters: EmbedParameters | None,
                           context: RequestContext) -> GenerationInput:
    if parameters is not None and parameters.adapter_id and parameters.merged_adapters is not None:
        raise InvalidRequest("at most one of `adapter_id` or `merged_adapters` may be given")
    return GenerationInput(prompt=text, kind=RequestKind.EMBED, parameter_names=parameter_names, tenant=context.tenant,
                           request_id=context.request_id,
                           adapter=None if parameters is None else parameters.adapter_reference(context.source_token),
                           deadline=context.deadline)


def get_output_vector(output: PoolingRequestOutput) -> EmbeddingVector:
    assert not isinstance(output.final_event.output, TokenClassificationOutput)
    return output.final_event.output


def vector_json(vector: EmbeddingVector) -> str:
    return f"[{','.join(map(float32_json, vector))}]"


def truncate_vector(vector: EmbeddingVector, length: int) -> EmbeddingVector:
    """Return the first `length` values, normalized to unit length. Raises InvalidRequest."""
    if length > len(vector):
        raise InvalidRequest(f"`dimensions` must be at most {len(vector)} with this model, got {length}")
    norm = sqrt(fsum(value * value for value in vector[:length]))
    return [value / norm if norm else value for value in vector[:length]]
