"""LoRAX's `/classify` and `/classify_batch`: entities in texts, from the labels of their tokens."""

from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import FailFast, Field

from router.errors import InvalidRequest
from router.http.transport.body import Foreign, json_answer, read_body
from router.http.transport.collect import Said
from router.http.transport.generate import House
from router.http.transport.headers import Caller
from router.http.transport.pooled import Read, read
from router.request import Wish
from router.scheduler.plan import Labelling
from router.telemetry.spans import LABELS
from router.text.entities import Entities, Entity
from router.text.prompts import Names
from router.validation.validator import Wanted

NAMES = Names(truncate="")


class ClassifyRequest(Foreign):
    inputs: str


class ClassifyBatchRequest(Foreign):
    inputs: Annotated[list[str], FailFast(), Field(min_length=1)]

    def check(self, most_texts: int) -> None:
        if len(self.inputs) > most_texts:
            raise InvalidRequest(f"`inputs` must hold at most {most_texts} texts (--max-client-batch-size), "
                                 f"got {len(self.inputs)}", "batch size exceeded")


class Classify:
    def __init__(self, house: House) -> None:
        self._house = house
        self._entities = Entities(house.engine.facts.labels, house.validator.tokenizer)

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/classify", self.classify), web.post("/classify_batch", self.classify_batch)]

    async def classify(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, LABELS)
        asked = await read_body(request, ClassifyRequest)
        found = await self._found(request, [asked.inputs], caller)
        return json_answer(found.made[0], found.headers)

    async def classify_batch(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, LABELS)
        asked = await read_body(request, ClassifyBatchRequest)
        asked.check(self._house.config.max_client_batch_size)
        found = await self._found(request, asked.inputs, caller)
        return json_answer(found.made, found.headers)

    async def _found(self, request: web.Request, texts: Sequence[str], caller: Caller) -> Read[list[dict[str, Any]]]:
        """Return the entities of each text, in order."""
        asked = [wanted(text, caller.part(index)) for index, text in enumerate(texts)]
        return await read(self._house, request, caller, asked, lambda index, said: self._told(texts[index], said))

    def _told(self, text: str, said: Said) -> list[dict[str, Any]]:
        choice, labelling = said.choice, said.end.told
        assert isinstance(labelling, Labelling)
        return [entity_told(entity) for entity in self._entities.of(
            text, choice.request.prompt, choice.places, labelling)]


def wanted(text: str, caller: Caller) -> Wanted:
    return Wanted(prompt=text, wish=Wish.LABELS, names=NAMES, tenant=caller.tenant, request_id=caller.request_id,
                  deadline=caller.deadline)


def entity_told(entity: Entity) -> dict[str, Any]:
    """Return an entity in LoRAX's format, which has words in lower case."""
    return {"entity_group": entity.group, "score": entity.score, "word": entity.word.lower(), "start": entity.start,
            "end": entity.end}
