"""Embeddings: `/embed` as LoRAX has it, `/v1/embeddings` as OpenAI does.

Turns foreign JSON into `Wanted`, and what was told into foreign JSON. Knows nothing of limits but how many texts a
request may have.
"""

from base64 import b64encode
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from math import fsum, sqrt
from struct import pack
from time import monotonic as clock
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.adapter import Merged, Named
from router.adapter import Wanted as AdapterWanted
from router.errors import InvalidRequest
from router.http.body import Foreign, Unsigned32, read_body
from router.http.dialect import House, told
from router.http.headers import Caller, compute, identity, timings
from router.http.rendering import number
from router.messages import Labelling, Vector
from router.prompts import Given, Names
from router.request import Wish
from router.spans import EMBEDDINGS
from router.validation import Wanted

NAMES = Names(prompt="input", truncate="")
EMBED_NAMES = Names(truncate="")


class Merging(Foreign):
    ids: list[str]
    weights: list[float] = Field(default_factory=list)
    merge_strategy: str | None = None
    density: float = 1.0
    majority_sign_method: str | None = None

    def wanted(self, source: str | None, token: str) -> Merged:
        parts = tuple(Named(name, source, token) for name in self.ids)
        return Merged(parts, tuple(self.weights), (self.merge_strategy or "linear").lower(), self.density,
                      (self.majority_sign_method or "total").lower())


class EmbedParameters(Foreign):
    """By which adapter."""

    adapter_id: str | None = None
    adapter_source: str | None = None
    merged_adapters: Merging | None = None
    api_token: str | None = None

    @property
    def adapter(self) -> AdapterWanted | None:
        if self.adapter_id and self.merged_adapters is not None:
            raise InvalidRequest("at most one of `adapter_id` or `merged_adapters` may be given")
        token = self.api_token or ""
        if self.merged_adapters is not None:
            return self.merged_adapters.wanted(self.adapter_source, token)
        return Named(self.adapter_id, self.adapter_source, token) if self.adapter_id else None


class EmbedRequest(Foreign):
    inputs: str
    parameters: EmbedParameters | None = None

    def wanted(self, caller: Caller) -> Wanted:
        return wanted(self.inputs, EMBED_NAMES, self.parameters, caller)


def several(given: object) -> object:
    """One text, or the tokens of one, are a list of one."""
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    return [given] if is_one else given


Tokens = Annotated[list[Unsigned32], Field(min_length=1)]
Inputs = Annotated[
    list[str | Tokens], FailFast(), Field(min_length=1),
    BeforeValidator(several, json_schema_input_type=str | Tokens | list[str | Tokens])]


class EmbeddingsRequest(Foreign):
    """Null means not given."""

    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Unsigned32 | None = None
    parameters: EmbedParameters | None = None

    def check(self, most_texts: int) -> None:
        if len(self.input) > most_texts:
            raise InvalidRequest(f"`input` must hold at most {most_texts} texts (--max-client-batch-size), "
                                 f"got {len(self.input)}", "batch size exceeded")
        if self.dimensions == 0:
            raise InvalidRequest("`dimensions` must be at least 1, got 0")

    def wanted(self, caller: Caller) -> list[Wanted]:
        return [wanted(text if isinstance(text, str) else tuple(text), NAMES, self.parameters, caller.part(index))
                for index, text in enumerate(self.input)]

    def rendered(self, vector: Vector) -> str:
        shortened = vector if self.dimensions is None else cut(vector, self.dimensions)
        if self.encoding_format == "base64":
            return f'"{b64encode(pack(f"<{len(shortened)}f", *shortened)).decode()}"'
        return vector_json(shortened)


class Embeddings:
    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/embed", self.embed), web.post("/v1/embeddings", self.embeddings)]

    async def embed(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, EMBEDDINGS)
        asked = await read_body(request, EmbedRequest)
        vectors, _, headers = await self._vectors(request, [asked.wanted(caller)], caller)
        return answered(f'{{"embeddings":{vector_json(vectors[0])}}}', headers)

    async def embeddings(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, EMBEDDINGS)
        asked = await read_body(request, EmbeddingsRequest)
        asked.check(self._house.config.max_client_batch_size)
        vectors, num_tokens, headers = await self._vectors(request, asked.wanted(caller), caller)
        rows = [f'{{"object":"embedding","index":{index},"embedding":{asked.rendered(vector)}}}'
                for index, vector in enumerate(vectors)]
        return answered(self._list_json(",".join(rows), num_tokens), headers)

    def _list_json(self, rows: str, num_tokens: int) -> str:
        if self._house.config.compat == "lorax":
            return f'{{"embeddings":[{rows}]}}'
        return (f'{{"object":"list","data":[{rows}],"model":{quoted(self._house.about.name)},'
                f'"usage":{{"prompt_tokens":{num_tokens},"total_tokens":{num_tokens}}}}}')

    async def _vectors(self, request: web.Request, wanted: Sequence[Wanted],
                       caller: Caller) -> tuple[list[Vector], int, dict[str, str]]:
        """In the order of the texts, each of which is a request of its own; how many tokens they have; headers."""
        house = self._house
        choices = [choice for each in wanted for choice in await house.validator.choices(each)]
        validated = clock()
        answers = await told(house, choices, caller)
        headers = (compute(house.engine.facts, sum(choice.num_characters for choice in choices)) | identity(request)
                   | timings(answers, validated - caller.came, clock() - caller.came))
        vectors = [answer.end.told for answer in answers if not isinstance(answer.end.told, Labelling)]
        return vectors, sum(len(choice.request.prompt) for choice in choices), headers


def wanted(text: Given, names: Names, parameters: EmbedParameters | None, caller: Caller) -> Wanted:
    return Wanted(prompt=text, wish=Wish.VECTOR, names=names, adapter=parameters.adapter if parameters else None,
                  tenant=caller.tenant, request_id=caller.request_id, deadline=caller.deadline)


def answered(body: str, headers: dict[str, str]) -> web.Response:
    return web.Response(body=body.encode(), headers=headers, content_type="application/json")


def vector_json(vector: Vector) -> str:
    return f"[{','.join(map(number, vector))}]"


def cut(vector: Vector, length: int) -> Vector:
    """Its first values, made as long as 1 again."""
    if length > len(vector):
        raise InvalidRequest(f"`dimensions` must be at most {len(vector)} with this model, got {length}")
    norm = sqrt(fsum(value * value for value in vector[:length]))
    return [value / norm if norm else value for value in vector[:length]]
