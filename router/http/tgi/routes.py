"""API of text-generation-inference: the routes that generate, their parameters and headers.

Parses bodies into `Wanted`; http/transport/collect.py renders the events.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic as clock
from typing import Any

from aiohttp import web
from pydantic import Field

from router.errors import InvalidRequest
from router.grammars.schema import read_grammar
from router.http.tgi.parameters import Shared
from router.http.transport.adapter_names import called
from router.http.transport.body import Foreign, Integer32, Unsigned32, read_body
from router.http.transport.collect import Answer, Streaming, error_event
from router.http.transport.generate import House, collected, open_stream
from router.http.transport.headers import Caller, compute, going_by, identity, timings
from router.http.transport.sse import EventStream, Pump
from router.validation.validator import Wanted


class Parameters(Shared):
    """Parameters of a generation. Null means that a field is not given, where its type allows null."""

    top_n_tokens: Unsigned32 | None = None
    grammar: Any = None
    cache_salt: str | None = None
    priority: Integer32 = 0


class Generate(Foreign):
    """A text to continue. As in TGI, tokens are sampled without `parameters`; with them, even empty ones, only if they
    ask for sampling."""

    inputs: str
    parameters: Parameters = Field(default_factory=lambda: Parameters(do_sample=True))
    cache_salt: str | None = None  # other servers take it here rather than in `parameters`

    @property
    def prefix(self) -> str:
        return self.inputs if self.parameters.return_full_text else ""

    def wanted(self, caller: Caller) -> Wanted:
        given = self.parameters
        if given.adapter_id and given.merged_adapters is not None:
            raise InvalidRequest("`adapter_id` and `merged_adapters` are given; give one of them")
        grammar = None if given.grammar is None else read_grammar("grammar", given.grammar)
        cache_salt = self._cache_salt()
        return replace(
            given.as_wanted(self.inputs, caller), relative_frequency_penalty=given.frequency_penalty,
            top_n_tokens=given.top_n_tokens, grammar=grammar, cache_salt=cache_salt, priority=given.priority)

    def _cache_salt(self) -> str | None:
        given = {self.cache_salt, self.parameters.cache_salt} - {None}
        if len(given) > 1:
            raise InvalidRequest("`cache_salt` is given twice, with different values; give it once")
        return given.pop() if given else None

    def check_streamable(self) -> None:
        if self.parameters.best_of not in {None, 1}:
            raise InvalidRequest(f"`best_of` must be 1 on a stream, got {self.parameters.best_of}")
        if self.parameters.decoder_input_details:
            raise InvalidRequest("`decoder_input_details` must be false on a stream, got true")


class CompatGenerate(Generate):
    """The body of `/generate` with the field `stream`. As in TGI's first versions, the answer repeats the prompt unless
    `return_full_text` is false."""

    stream: bool = False

    @property
    def prefix(self) -> str:
        return "" if self.parameters.return_full_text is False else self.inputs


class Tgi:
    """Handlers of TGI's routes that generate."""

    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/", self.compat),
            web.post("/generate", self.generate),
            web.post("/generate_stream", self.generate_stream),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        headers, body = await self._whole(request, await read_body(request, Generate), caller)
        return web.Response(body=body.encode(), headers=headers, content_type="application/json")

    async def compat(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        asked = await read_body(request, CompatGenerate)
        if asked.stream:
            return await self._streamed(request, asked, caller)
        headers, body = await self._whole(request, asked, caller)
        return web.Response(body=f"[{body}]".encode(), headers=headers, content_type="application/json")

    async def generate_stream(self, request: web.Request) -> web.StreamResponse:
        caller = Caller.of(request, self._house.engine)
        return await self._streamed(request, await read_body(request, Generate), caller)

    async def _whole(self, request: web.Request, asked: Generate, caller: Caller) -> tuple[dict[str, str], str]:
        house = self._house
        choices = await house.validator.choices(asked.wanted(caller))
        validated = clock()
        answers = await collected(house, choices, caller)
        best, *others = sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)
        headers = (compute(house.engine.facts, len(asked.inputs)) | identity(request) | going_by(best.choice.adapter)
                   | timings([best], validated - caller.came, clock() - caller.came))
        return headers, self._answer_json(asked, best, others)

    async def _streamed(self, request: web.Request, asked: Generate, caller: Caller) -> web.StreamResponse:
        """Answer with a stream. It opens before the request is validated, so errors are sent as events, as in TGI."""
        adapter = called(self._house.validator.adapters, asked.parameters.adapter(caller.token))
        headers = compute(self._house.engine.facts, len(asked.inputs)) | identity(request) | going_by(adapter)
        patience = self._house.config.slow_client_timeout
        async with open_stream(request, headers, patience, error_event) as out:
            await self._stream(asked, caller, out)
        return out.response

    async def _stream(self, asked: Generate, caller: Caller, out: EventStream) -> None:
        house = self._house
        asked.check_streamable()
        [choice] = await house.validator.choices(asked.wanted(caller))
        rendering = Streaming(choice, asked.parameters.details, asked.prefix)
        with closing(house.submit(choice, caller)) as stream:
            stream.cut = out.cut
            await Pump(stream, rendering, out, house.outbox).run()

    def _answer_json(self, asked: Generate, best: Answer, others: Sequence[Answer]) -> str:
        text = quoted(asked.prefix + best.end.text)
        if not (asked.parameters.details or asked.parameters.decoder_input_details):
            return f'{{"generated_text":{text}}}'
        details = best.details_json(self._house.validator.tokenizer, others, asked.prefix)
        return f'{{"generated_text":{text},"details":{details}}}'
