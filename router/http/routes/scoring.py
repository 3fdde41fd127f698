"""Scores of pairs of texts, which for a model that makes embeddings are the cosine similarities of their vectors:
vLLM's `/score`, and `/rerank` with the bodies of Jina, Cohere and vLLM."""

import asyncio
import secrets
import time
from array import array
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from math import sqrt
from operator import mul
from typing import Annotated, Any, ClassVar, Self

from aiohttp import web
from pydantic import (
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ModelWrapValidatorHandler,
    model_validator,
)

from router.errors import InvalidRequest
from router.http.routes.pooling import MAX_TEXTS, create_embedding_input, get_output_vector, run_pooling_requests
from router.http.tgi.rendering import float32_json
from router.http.transport.body import (
    BodyModel,
    LenientBodyModel,
    RefusedFields,
    UInt32,
    json_text_response,
    read_body,
    wrap_single_text,
)
from router.http.transport.request_context_and_middleware import RequestContext
from router.http.transport.services import PoolingRequestOutput, ServiceRoutes
from router.telemetry.spans import EMBEDDINGS_OPERATION
from router.text.prompt_encoder import DialectParameterNames
from router.validation.bounds import NON_EMPTY_TEXT, NON_EMPTY_TEXTS_OR_TOKENS

FIRST_NAMES, SECOND_NAMES = ("text_1", "queries", "data_1"), ("text_2", "documents", "items", "data_2")
# One text or several.
Texts = Annotated[list[str], FailFast(), Field(min_length=1), NON_EMPTY_TEXTS_OR_TOKENS,
                  BeforeValidator(wrap_single_text, json_schema_input_type=str | list[str])]


class ScoringRequest(LenientBodyModel):
    """Base class of bodies with texts to compare."""

    refused_fields: ClassVar[RefusedFields] = dict.fromkeys(
        ("truncate_prompt_tokens", "max_tokens_per_doc", "rank_fields"), (None,))  # texts are compared whole
    model: str | None = None


class RerankDocument(BodyModel):
    """A document to rank, as an object. Its other fields are passed over, as Cohere does."""

    model_config = ConfigDict(extra="allow")
    text: Annotated[str, NON_EMPTY_TEXT]


def get_document_text(value: object) -> object:
    return value["text"] if isinstance(value, dict) and "text" in value else value


DocumentText = Annotated[str, BeforeValidator(
    get_document_text, json_schema_input_type=Annotated[str, Field(min_length=1)] | RerankDocument)]


class RerankRequest(ScoringRequest):
    """Body of `/rerank`: a query, and documents to be sorted by their similarity to it."""

    query: Annotated[str, NON_EMPTY_TEXT]
    documents: Annotated[list[DocumentText], FailFast(), Field(min_length=1)]
    top_n: UInt32 | None = None  # 0: all
    return_documents: bool | None = None


class ScoreRequest(ScoringRequest):
    """Body of `/score`: pairs of texts, or one text and those that it is compared with. Instead of `text_1` and
    `text_2` vLLM takes `queries` with `documents` or `items`, too, or `data_1` with `data_2`."""

    text_1: Annotated[Texts, Field(validation_alias=AliasChoices(*FIRST_NAMES))]
    text_2: Annotated[Texts, Field(validation_alias=AliasChoices(*SECOND_NAMES))]
    _given_names: tuple[str, str] = ("", "")  # of the two

    @model_validator(mode="wrap")
    @classmethod
    def remember_given_field_names(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        built = validate(value)
        built._given_names = (next(name for name in FIRST_NAMES if name in value),
                              next(name for name in SECOND_NAMES if name in value))
        return built

    @property
    def given_field_names(self) -> tuple[str, str]:
        return self._given_names

    def check_num_texts(self) -> None:
        """Raise InvalidRequest unless the texts can be paired."""
        num_first, num_second = len(self.text_1), len(self.text_2)
        if num_first not in {1, num_second}:
            first, second = self._given_names
            raise InvalidRequest(f"`{first}` must hold one text or as many as `{second}`, which holds {num_second}, "
                                 f"got {num_first}")


class ScoringRoutes(ServiceRoutes):
    """Handlers of `/rerank` and `/score`."""

    def routes(self) -> list[web.RouteDef]:
        return [*(web.post(path, self.rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
                *(web.post(path, self.score) for path in ("/score", "/v1/score"))]

    async def rerank(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        rerank_request = await read_body(request, RerankRequest)
        rerank_request.check_refused_fields()
        texts = rerank_request.documents
        scores, headers, num_tokens = await self._compute_scores(
            request, context, ("query", [rerank_request.query]), ("documents", texts))
        best_first = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        results = ",".join(
            f'{{"index":{index},'
            + f'"document":{{"text":{quoted(texts[index])}}},' * (rerank_request.return_documents is not False)
            + f'"relevance_score":{float32_json(scores[index])}}}'
            for index in best_first[:rerank_request.top_n or len(scores)])
        return json_text_response(
            f'{{"id":"rerank-{secrets.token_hex(12)}","model":{quoted(self._services.served_model.name)},'
            f'"usage":{prompt_usage_json(num_tokens)},"results":[{results}]}}', headers)

    async def score(self, request: web.Request) -> web.Response:
        context = RequestContext.from_request(request, self._services.engine, EMBEDDINGS_OPERATION)
        score_request = await read_body(request, ScoreRequest)
        score_request.check_refused_fields()
        score_request.check_num_texts()
        first, second = score_request.given_field_names
        scores, headers, num_tokens = await self._compute_scores(
            request, context, (first, score_request.text_1), (second, score_request.text_2))
        rows = ",".join(f'{{"index":{index},"object":"score","score":{float32_json(score)}}}'
                        for index, score in enumerate(scores))
        return json_text_response(
            f'{{"id":"score-{secrets.token_hex(12)}","object":"list","created":{int(time.time())},'
            f'"model":{quoted(self._services.served_model.name)},"data":[{rows}],'
            f'"usage":{prompt_usage_json(num_tokens)}}}',
            headers)

    async def _compute_scores(self, request: web.Request, context: RequestContext, first: tuple[str, Sequence[str]],
                              second: tuple[str, Sequence[str]]) -> tuple[list[float], dict[str, str], int]:
        """Return the score of each of the second texts, the headers of the response and the number of tokens. Both
        arguments are the name of a parameter and its texts; the first has one text for all, or one for each."""
        named_texts = [(name, text) for name, texts in (first, second) for text in texts]
        for name, texts in (first, second):
            if len(texts) > MAX_TEXTS:
                raise InvalidRequest(f"`{name}` must hold at most {MAX_TEXTS} texts, got {len(texts)}",
                                     "batch size exceeded")
        inputs = [create_embedding_input(text, DialectParameterNames(prompt=name, truncate=""), None,
                                         context.for_prompt(index))
                  for index, (name, text) in enumerate(named_texts)]
        vectors, headers, num_tokens = await run_pooling_requests(self._services, request, context, inputs,
                                                                  pack_output_vector)
        num_first = len(first[1])
        # In a thread: each pair takes a good part of a millisecond.
        scores = await asyncio.to_thread(compute_similarities, vectors[:num_first], vectors[num_first:])
        return scores, headers, num_tokens


def pack_output_vector(_: int, output: PoolingRequestOutput) -> "array[float]":
    """Return the vector in a sixth of its memory, since all are kept until the last has come."""
    return array("f", get_output_vector(output))


def compute_similarities(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> list[float]:
    """Return the cosine similarity of each vector with that of `first` at its place, or with the only one there."""
    norms = [compute_norm(vector) for vector in first]
    similarities: list[float] = []
    for index, vector in enumerate(second):
        place = index if len(first) > 1 else 0
        norm = norms[place] * compute_norm(vector)
        cosine = sum(map(mul, first[place], vector)) / norm if norm else 0.0
        similarities.append(max(-1.0, min(1.0, cosine)))
    return similarities


def compute_norm(vector: Sequence[float]) -> float:
    return sqrt(sum(map(mul, vector, vector)))


def prompt_usage_json(num_tokens: int) -> str:
    return f'{{"prompt_tokens":{num_tokens},"total_tokens":{num_tokens}}}'
