"""LoRAX's API (--compat lorax): the routes that generate, `/tokenize` and `/info`.

parameters.py has the parameters and their checks, rendering.py the format of responses.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic as clock

from aiohttp import web
from pydantic import Field

from router.grammars.schema import Grammar
from router.http.lorax.parameters import LoraxParameters, check, check_streamable
from router.http.lorax.rendering import LoraxStreaming, answer_json, error_event, head, times
from router.http.routes.tokenize import NAMES, answer_tokens, json_pieces
from router.http.transport.adapter_names import called
from router.http.transport.body import Foreign, json_answer, read_body
from router.http.transport.collect import Answer
from router.http.transport.generate import House, collected, open_stream
from router.http.transport.headers import Caller, compute, going_by, identity
from router.http.transport.sse import EventStream, Pump, Rendering
from router.text.chat_template import Conversation
from router.text.prompts import Encoded
from router.validation.validator import Choice


@dataclass(frozen=True, slots=True)
class Order:
    """A generation request of any LoRAX route."""

    prompt: str | Conversation
    parameters: LoraxParameters
    grammar: Callable[[], Grammar | None]

    @property
    def num_characters(self) -> int | None:
        return len(self.prompt) if isinstance(self.prompt, str) else None

    @property
    def prefix(self) -> str:
        return self.prompt if self.parameters.return_full_text and isinstance(self.prompt, str) else ""


class LoraxGenerate(Foreign):
    inputs: str
    parameters: LoraxParameters = Field(default_factory=LoraxParameters)

    @property
    def order(self) -> Order:
        given = self.parameters.response_format
        return Order(self.inputs, self.parameters, lambda: None if given is None else given.grammar())


class LoraxCompatGenerate(LoraxGenerate):
    """The body of `/generate` with the field `stream`."""

    stream: bool = False


class TokenizeText(Foreign):
    inputs: str
    add_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """Answers of a request without streaming: the best one, the others, and the response headers."""

    best: Answer
    others: list[Answer]
    headers: dict[str, str]

    def response(self, body: str) -> web.Response:
        return web.Response(body=body.encode(), headers=self.headers, content_type="application/json")


class Orders:
    """Runs orders, with a whole response or a stream."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def whole(self, request: web.Request, order: Order, caller: Caller) -> Whole:
        choices = await self._choices(order, caller)
        validated = clock()
        answers = await collected(self._house, choices, caller)
        best, *others = sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)
        headers = (self._head(request, order.num_characters or best.choice.num_characters)
                   | going_by(best.choice.adapter) | times(best, validated - caller.came, clock() - caller.came))
        return Whole(best, others, headers)

    async def streamed(self, request: web.Request, order: Order, caller: Caller,
                       rendering: Callable[[Choice], Rendering]) -> web.StreamResponse:
        """Answer with a stream. It opens before the request is validated, so errors are sent as events."""
        adapter = called(self._house.validator.adapters, order.parameters.adapter(caller.token))
        headers = self._head(request, order.num_characters) | going_by(adapter)
        async with open_stream(request, headers, self._house.config.slow_client_timeout, error_event) as out:
            await self._stream(order, caller, rendering, out)
        return out.response

    async def _stream(self, order: Order, caller: Caller, rendering: Callable[[Choice], Rendering],
                      out: EventStream) -> None:
        check_streamable(order.parameters)
        [choice] = await self._choices(order, caller)
        with closing(self._house.submit(choice, caller)) as stream:
            stream.cut = out.cut
            await Pump(stream, rendering(choice), out, self._house.outbox).run()

    async def _choices(self, order: Order, caller: Caller) -> list[Choice]:
        validator = self._house.validator
        check(order.parameters, order.prompt, self._house.config, validator.limits)
        return await validator.choices(order.parameters.wanted(order.prompt, caller, order.grammar()))

    def _head(self, request: web.Request, num_characters: int | None) -> dict[str, str]:
        exact = compute(self._house.engine.facts, 0)["x-weft-exact"]
        return head(self._house.about.name, num_characters) | {"x-weft-exact": exact} | identity(request)


class Lorax:
    """Handlers of LoRAX's own routes."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._orders = Orders(house)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/", self.compat),
            web.post("/generate", self.generate),
            web.post("/generate_stream", self.generate_stream),
            web.post("/tokenize", self.tokenize),
            web.get("/info", self.info),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        order = (await read_body(request, LoraxGenerate)).order
        found = await self._orders.whole(request, order, caller)
        return found.response(self._json(order, found))

    async def compat(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        asked = await read_body(request, LoraxCompatGenerate)
        if asked.stream:
            return await self._streamed(request, asked, caller)
        found = await self._orders.whole(request, asked.order, caller)
        return found.response(f"[{self._json(asked.order, found)}]")

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        return await self._streamed(request, await read_body(request, LoraxGenerate), caller)

    async def _streamed(self, request: web.Request, asked: LoraxGenerate, caller: Caller) -> web.StreamResponse:
        order = asked.order
        return await self._orders.streamed(request, order, caller, lambda choice: LoraxStreaming(
            choice, order.parameters.details, order.prefix))

    def _json(self, order: Order, found: Whole) -> str:
        return answer_json(found.best, self._house.validator.tokenizer, found.others, order.prefix,
                           details=order.parameters.has_details)

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """Return the tokens as the vocabulary spells them, with offsets in characters."""
        asked = await read_body(request, TokenizeText)
        piece_of = self._house.validator.tokenizer.piece

        def pieces(encoded: Encoded) -> list[bytes]:
            return [*json_pieces({"id": token, "text": piece_of(token), "start": start, "stop": stop}
                                 for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True))]
        return await answer_tokens(self._house, request, asked.inputs, NAMES, pieces,
                                   add_special_tokens=asked.add_special_tokens is not False)

    async def info(self, _: web.Request) -> web.Response:
        facts, config, limits = self._house.engine.facts, self._house.config, self._house.validator.limits
        return json_answer({
            "model_id": self._house.about.name,
            "model_sha": None,
            "model_dtype": f"torch.{facts.dtype}",
            "model_device_type": facts.device,
            "model_pipeline_tag": None,
            "max_concurrent_requests": config.max_concurrent_requests,
            "max_best_of": config.max_best_of,
            "max_stop_sequences": config.max_stop_sequences,
            "max_input_length": limits.max_input_tokens,
            "max_total_tokens": limits.max_total_tokens,
            "waiting_served_ratio": config.waiting_served_ratio,
            "max_batch_total_tokens": facts.num_blocks * facts.block_size,
            "max_waiting_tokens": config.max_waiting_tokens,
            "validation_workers": config.validation_workers,
            "eager_prefill": True,
            "version": version("weft"),
            "sha": None,
            "docker_label": None,
            "request_logger_url": None,
        })
