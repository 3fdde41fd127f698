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

from router.adapters.reference import Wanted as Adapter
from router.errors import InvalidRequest
from router.http.transport.adapter_names import Adapted
from router.http.transport.body import Foreign, Unsigned32, read_body
from router.http.transport.collect import Said, number
from router.http.transport.generate import House
from router.http.transport.headers import Caller
from router.http.transport.pooled import read
from router.request import Wish
from router.scheduler.plan import Labelling, Vector
from router.telemetry.spans import EMBEDDINGS
from router.text.prompts import Given, Names
from router.validation.validator import Wanted

NAMES = Names(prompt="input", truncate="")
EMBED_NAMES = Names(truncate="")
MOST_TEXTS = 2048  # OpenAI's limit


class EmbedParameters(Adapted):
    def wanted(self, token: str) -> Adapter | None:
        """Return the adapter that the request names, if any. Raises InvalidRequest."""
        if self.adapter_id and self.merged_adapters is not None:
            raise InvalidRequest("at most one of `adapter_id` or `merged_adapters` may be given")
        return self.adapter(token)


class EmbedRequest(Foreign):
    inputs: str
    parameters: EmbedParameters | None = None

    def wanted(self, caller: Caller) -> Wanted:
        return wanted(self.inputs, EMBED_NAMES, self.parameters, caller)


def several(given: object) -> object:
    """Wrap a single text, or a single list of token ids, in a list."""
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    return [given] if is_one else given


Tokens = Annotated[list[Unsigned32], Field(min_length=1)]
Inputs = Annotated[
    list[str | Tokens], FailFast(), Field(min_length=1),
    BeforeValidator(several, json_schema_input_type=str | Tokens | list[str | Tokens])]


class EmbeddingsRequest(Foreign):
    """One or several texts to embed. Null means that a field is not given."""

    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Unsigned32 | None = None
    parameters: EmbedParameters | None = None

    def check(self) -> None:
        if len(self.input) > MOST_TEXTS:
            raise InvalidRequest(f"`input` must hold at most {MOST_TEXTS} texts, got {len(self.input)}",
                                 "batch size exceeded")
        if self.dimensions == 0:
            raise InvalidRequest("`dimensions` must be at least 1, got 0")

    def wanted(self, caller: Caller) -> list[Wanted]:
        return [wanted(text if isinstance(text, str) else tuple(text), NAMES, self.parameters, caller.part(index))
                for index, text in enumerate(self.input)]

    def row(self, index: int, said: Said) -> str:
        return f'{{"object":"embedding","index":{index},"embedding":{self._rendered(vector_of(said))}}}'

    def _rendered(self, vector: Vector) -> str:
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
        found = await read(self._house, request, caller, [asked.wanted(caller)], lambda _, said: vector_of(said))
        return answered(f'{{"embeddings":{vector_json(found.made[0])}}}', found.headers)

    async def embeddings(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, EMBEDDINGS)
        asked = await read_body(request, EmbeddingsRequest)
        asked.check()
        found = await read(self._house, request, caller, asked.wanted(caller), asked.row)
        return answered(self._list_json(",".join(found.made), found.num_tokens), found.headers)

    def _list_json(self, rows: str, num_tokens: int) -> str:
        if self._house.is_lorax:
            return f'{{"embeddings":[{rows}]}}'
        return (f'{{"object":"list","data":[{rows}],"model":{quoted(self._house.about.name)},'
                f'"usage":{{"prompt_tokens":{num_tokens},"total_tokens":{num_tokens}}}}}')


def wanted(text: Given, names: Names, parameters: EmbedParameters | None, caller: Caller) -> Wanted:
    return Wanted(prompt=text, wish=Wish.VECTOR, names=names, tenant=caller.tenant, request_id=caller.request_id,
                  adapter=None if parameters is None else parameters.wanted(caller.token), deadline=caller.deadline)


def vector_of(said: Said) -> Vector:
    assert not isinstance(said.end.told, Labelling)
    return said.end.told


def answered(body: str, headers: dict[str, str]) -> web.Response:
    return web.Response(body=body.encode(), headers=headers, content_type="application/json")


def vector_json(vector: Vector) -> str:
    return f"[{','.join(map(number, vector))}]"


def cut(vector: Vector, length: int) -> Vector:
    """Return the first `length` values, normalised to unit length. Raises InvalidRequest."""
    if length > len(vector):
        raise InvalidRequest(f"`dimensions` must be at most {len(vector)} with this model, got {length}")
    norm = sqrt(fsum(value * value for value in vector[:length]))
    return [value / norm if norm else value for value in vector[:length]]
