"""Texts and conversations as tokens, without generating: `/tokenize` and `/chat_tokenize`.

Knows nothing of sampling. Offsets count bytes, as text-generation-inference's do.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from aiohttp import web

from router.http.body import json_answer, read_body
from router.http.dialect import House
from router.http.openai import ChatRequest
from router.http.tgi import Generate
from router.prompts import Encoded


class Tokens:
    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/chat_tokenize", self.chat_tokenize)]

    async def tokenize(self, request: web.Request) -> web.Response:
        asked = await read_body(request, Generate)
        return json_answer(simple_tokens(await self._house.validator.encoded(asked.inputs)))

    async def chat_tokenize(self, request: web.Request) -> web.Response:
        asked = await read_body(request, ChatRequest)
        encoded = await self._house.validator.encoded(asked.conversation)
        return json_answer({"tokenize_response": simple_tokens(encoded), "templated_text": encoded.text})


def simple_tokens(encoded: Encoded) -> list[dict[str, Any]]:
    places = byte_places(encoded.text)
    return [{"id": token, "text": encoded.text[start:stop], "start": places[start], "stop": places[stop]}
            for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True)]


def byte_places(text: str) -> Sequence[int]:
    """Where each character begins, in bytes, and where the last one ends."""
    if text.isascii():
        return range(len(text) + 1)
    return list(accumulate((len(character.encode()) for character in text), initial=0))
