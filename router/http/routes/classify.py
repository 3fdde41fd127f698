"""LoRAX's `/classify` and `/classify_batch`: entities in texts, from the labels of their tokens."""

from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import FailFast, Field

from router.errors import InvalidRequest
from router.http.transport.body import RequestBody, json_response, read_body
from router.http.transport.pooling_requests import PoolingResults, run_pooling_requests
from router.http.transport.request_context import RequestContext
from router.http.transport.services import PoolingRequestOutput, Services
from router.request import RequestKind, TokenClassificationOutput
from router.telemetry.spans import CLASSIFICATION_OPERATION
from router.text.entity_aggregation import Entity, find_entities
from router.text.prompt_encoder import DialectParameterNames
from router.validation.bounds import NON_EMPTY_TEXT, NON_EMPTY_TEXTS
from router.validation.validator import GenerationInput

PARAMETER_NAMES = DialectParameterNames(truncate="")


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
        return [entity_json(entity) for entity in find_entities(
            text, validated_request.request.prompt, validated_request.char_ranges, token_labels,
            label_names=self._services.engine.model_info.labels, tokenizer=self._services.validator.tokenizer)]


def create_classification_input(text: str, context: RequestContext) -> GenerationInput:
    return GenerationInput(prompt=text, kind=RequestKind.CLASSIFY, parameter_names=PARAMETER_NAMES,
                           tenant=context.tenant, request_id=context.request_id, deadline=context.deadline)


def entity_json(entity: Entity) -> dict[str, Any]:
    """Return an entity in LoRAX's format, which has words in lower case."""
    return {"entity_group": entity.group, "score": entity.score, "word": entity.word.lower(), "start": entity.start,
            "end": entity.end}
