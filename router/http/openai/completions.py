"""OpenAI's `POST /v1/completions`, with one or several prompts in a request.

Parses bodies into `Wanted`; rendering.py renders the events. The number of prompts is checked here, all other limits by
the validator.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from time import monotonic as clock
from typing import Annotated

from aiohttp import web
from pydantic import BeforeValidator, FailFast, Field

from router.errors import InvalidRequest
from router.http.openai.fields import Asked, choices_of, labelled, listed
from router.http.openai.rendering import DONE, Label, TextChunks, text_completion_json, text_usage_chunk
from router.http.transport.body import Unsigned32, read_body
from router.http.transport.generate import House, collected, open_stream, together
from router.http.transport.headers import Caller, compute, going_by, identity, timings
from router.http.transport.sse import Pump
from router.text.prompts import Names
from router.validation.validator import Choice, Wanted

NAMES = Names(prompt="prompt", max_new_tokens="max_tokens", truncate="")
Prompts = Annotated[list[str], FailFast(), Field(min_length=1),
                    BeforeValidator(listed, json_schema_input_type=str | list[str])]


class Completion(Asked):
    prompt: Prompts
    repetition_penalty: float | None = None
    suffix: str | None = None
    best_of: Unsigned32 | None = None
    echo: bool | None = None
    logprobs: Unsigned32 | None = None

    def check(self, most_prompts: int) -> None:
        """Reject what text-generation-inference rejects, too. Raises InvalidRequest."""
        if self.suffix:
            raise InvalidRequest("`suffix` is given, but text is only generated at the end of a prompt; leave it out",
                                "suffix not supported")
        if len(self.prompt) > most_prompts:
            raise InvalidRequest(f"`prompt` must hold at most {most_prompts} texts (--max-client-batch-size), "
                                f"got {len(self.prompt)}", "batch size exceeded")

    def check_served(self) -> None:
        """Reject fields that are not implemented, instead of ignoring them as `--compat tgi` does."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in {None, 1}:
                raise InvalidRequest(f"`{name}` must be 1, got {getattr(self, name)}; ask several times")
        for name in ("echo", "logprobs"):
            if getattr(self, name):
                raise InvalidRequest(f"`{name}` is given, but completions are served without it yet; leave it out")

    def wanted(self, prompt: str, caller: Caller) -> Wanted:
        return replace(self.as_wanted(prompt, NAMES, caller), repetition_penalty=self.repetition_penalty)


class Completions:
    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.complete)]

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer with a whole response or a stream. A stream opens only after its requests are submitted, so that
        errors up to then have their HTTP status."""
        caller = Caller.of(request, self._house.engine)
        asked = await read_body(request, Completion)
        asked.check(self._house.config.max_client_batch_size)
        if not self._house.is_tgi:
            asked.check_served()
        choices = [choice for index, prompt in enumerate(asked.prompt)
                   for choice in await self._choices(asked, prompt, caller.part(index))]
        if asked.stream:
            return await self._streamed(request, asked, choices, caller)
        return await self._whole(request, choices, caller)

    async def _choices(self, asked: Completion, prompt: str, caller: Caller) -> list[Choice]:
        return await choices_of(self._house, asked, asked.wanted(prompt, caller), caller)

    async def _whole(self, request: web.Request, choices: Sequence[Choice], caller: Caller) -> web.StreamResponse:
        named, validated = self._label(request), clock()
        answers = await collected(self._house, choices, caller)
        headers = self._headers(request, choices) | timings(answers, validated - caller.came, clock() - caller.came)
        body = text_completion_json(named, answers).encode()
        return web.Response(body=body, headers=headers, content_type="application/json")

    async def _streamed(self, request: web.Request, asked: Completion, choices: Sequence[Choice],
                        caller: Caller) -> web.StreamResponse:
        house, named = self._house, self._label(request)
        with ExitStack() as leaving:
            streams = [leaving.enter_context(closing(house.submit(choice, caller))) for choice in choices]
            patience = house.config.slow_client_timeout
            async with open_stream(request, self._headers(request, choices), patience, named.error_chunk) as out:
                for stream in streams:
                    stream.cut = out.cut
                texts = [TextChunks(named, index, len(choice.request.prompt)) for index, choice in enumerate(choices)]
                await together(pumped(Pump(stream, text, out, house.outbox), text)
                               for stream, text in zip(streams, texts, strict=True))
                usage = text_usage_chunk(named, texts) if asked.wants_usage else ""
                out.write(f"{usage}{DONE}".encode())
            return out.response

    def _headers(self, request: web.Request, choices: Sequence[Choice]) -> dict[str, str]:
        num_characters = sum(choice.num_characters for choice in choices)
        return compute(self._house.engine.facts, num_characters) | identity(request) | going_by(choices[0].adapter)

    def _label(self, request: web.Request) -> Label:
        return labelled(self._house, request.path, "cmpl", self._house.about.name)


async def pumped(pump: Pump, text: TextChunks) -> None:
    """Run the pump, then raise the completion's error if it failed: the text before the error is already written."""
    await pump.run()
    if text.error is not None:
        raise text.error
