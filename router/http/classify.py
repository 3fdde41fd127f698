"""What texts name: `/classify` and `/classify_batch`, as LoRAX has them.

Turns foreign JSON into `Wanted`, and labels into foreign JSON. Knows nothing of how labels become entities.
"""

from collections.abc import Sequence
from time import monotonic as clock
from typing import Annotated, Any

from aiohttp import web
from pydantic import FailFast, Field

from router.entities import Entities, Entity
from router.errors import InvalidRequest
from router.http.body import Foreign, json_answer, read_body
from router.http.dialect import House, told
from router.http.headers import Caller, compute, identity, timings
from router.http.rendering import Said
from router.messages import Labelling
from router.prompts import Names
from router.request import Wish
from router.spans import LABELS
from router.validation import Wanted

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
        found, headers = await self._found(request, [asked.inputs], caller)
        return json_answer(found[0], headers)

    async def classify_batch(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine, LABELS)
        asked = await read_body(request, ClassifyBatchRequest)
        asked.check(self._house.config.max_client_batch_size)
        found, headers = await self._found(request, asked.inputs, caller)
        return json_answer(found, headers)

    async def _found(self, request: web.Request, texts: Sequence[str],
                     caller: Caller) -> tuple[list[list[dict[str, Any]]], dict[str, str]]:
        """By text, each of which is a request of its own."""
        house = self._house
        choices = [choice for index, text in enumerate(texts)
                   for choice in await house.validator.choices(wanted(text, caller.part(index)))]
        validated = clock()
        answers = await told(house, choices, caller)
        headers = (compute(house.engine.facts, sum(map(len, texts))) | identity(request)
                   | timings(answers, validated - caller.came, clock() - caller.came))
        return [self._told(*pair) for pair in zip(texts, answers, strict=True)], headers

    def _told(self, text: str, answer: Said) -> list[dict[str, Any]]:
        choice, labelling = answer.choice, answer.end.told
        assert isinstance(labelling, Labelling)
        return [entity_told(entity) for entity in self._entities.of(
            text, choice.request.prompt, choice.places, labelling)]


def wanted(text: str, caller: Caller) -> Wanted:
    return Wanted(prompt=text, wish=Wish.LABELS, names=NAMES, tenant=caller.tenant, request_id=caller.request_id,
                  deadline=caller.deadline)


def entity_told(entity: Entity) -> dict[str, Any]:
    """LoRAX tells words in lower case."""
    return {"entity_group": entity.group, "score": entity.score, "word": entity.word.lower(), "start": entity.start,
            "end": entity.end}
