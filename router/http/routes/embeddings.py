"""Embeddings: LoRAX's `/embed` and OpenAI's `/v1/embeddings`.

The number of texts and `dimensions` are checked here, all other limits by the validator.
"""

from base64 import b64encode
from json.encoder import encode_basestring_ascii as quoted
from math import fsum, sqrt
from struct import pack
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.adapters.reference import RequestedAdapter
from router.errors import InvalidRequest
from router.http.tgi.rendering import float32_json
from router.http.transport.adapter_parameters import AdapterParameters
from router.http.transport.body import RequestBody, UInt32, json_text_response, read_body
from router.http.transport.pooling_requests import run_pooling_requests
from router.http.transport.request_context import RequestContext
from router.http.transport.services import PoolingRequestOutput, Services
from router.request import EmbeddingVector, RequestKind, TokenClassificationOutput
from router.telemetry.spans import EMBEDDINGS_OPERATION
from router.text.prompt_encoder import DialectParameterNames, RawPrompt
from router.validation.bounds import AT_LEAST_ONE, NON_EMPTY_TEXT, NON_EMPTY_TEXTS_OR_TOKENS
from router.validation.validator import GenerationInput

PARAMETER_NAMES = DialectParameterNames(prompt="input", truncate="")
EMBED_PARAMETER_NAMES = DialectParameterNames(truncate="")
MAX_TEXTS = 2048  # OpenAI's limit


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
