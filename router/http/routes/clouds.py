"""Routes of cloud platforms: SageMaker's `/invocations` and Vertex AI's `/vertex`.

Both take the bodies of other routes.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import FailFast, Field

from router.errors import InvalidRequest
from router.http.openai.chat import ChatRequest
from router.http.openai.fields import choices_of
from router.http.tgi.routes import Generate
from router.http.transport.body import Foreign, json_answer, read_body
from router.http.transport.collect import Answer
from router.http.transport.generate import House, collected, together
from router.http.transport.headers import Caller
from router.validation.validator import Choice


class Invocation(Foreign):
    """The fields that decide which route the body is for: the first one present."""

    inputs: Any = None
    messages: Any = None
    prompt: Any = None


class Instances(Foreign):
    instances: Annotated[list[Generate | ChatRequest], FailFast(), Field(min_length=1)]


class Clouds:
    def __init__(self, house: House, text: Handler, chat: Handler, completion: Handler) -> None:
        """`text`, `chat` and `completion` are the handlers of `/`, of chats and of completions."""
        self._house = house
        self._handlers = {"inputs": text, "messages": chat, "prompt": completion}

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/invocations", self.invoke), web.post("/vertex", self.predict)]

    async def invoke(self, request: web.Request) -> web.StreamResponse:
        try:
            handler = await self._handler(request)
        except Exception:
            Caller.of(request, self._house.engine)  # counts the request, since no handler will
            raise
        return await handler(request)

    async def _handler(self, request: web.Request) -> Handler:
        asked = await read_body(request, Invocation)
        for name, handler in self._handlers.items():
            if getattr(asked, name) is not None:
                return handler
        raise web.HTTPUnprocessableEntity(text="the body must have `inputs`, `messages` or `prompt`")

    async def predict(self, request: web.Request) -> web.Response:
        caller = Caller.of(request, self._house.engine)
        asked = await read_body(request, Instances)
        if len(asked.instances) > (most := self._house.config.max_client_batch_size):
            raise InvalidRequest(f"`instances` must hold at most {most} (--max-client-batch-size), "
                                 f"got {len(asked.instances)}", "batch size exceeded")
        found = [await self._choices(instance, caller.part(index)) for index, instance in enumerate(asked.instances)]
        answers = await together(self._best(choices, caller) for choices in found)
        return json_answer({"predictions": [answer.end.text for answer in answers]})

    async def _choices(self, instance: Generate | ChatRequest, caller: Caller) -> list[Choice]:
        wanted = instance.wanted(caller)
        if isinstance(instance, ChatRequest):
            return await choices_of(self._house, instance, wanted, caller)
        return await self._house.validator.choices(wanted)

    async def _best(self, choices: Sequence[Choice], caller: Caller) -> Answer:
        return max(await collected(self._house, choices, caller), key=lambda answer: answer.mean_logprob)
