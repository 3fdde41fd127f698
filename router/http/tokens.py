"""Texts and conversations as tokens, without generating: `/tokenize` and `/chat_tokenize`.

The JSON of a token takes ten to sixty times the room of its text, so it is made in a thread and sent in pieces.
Knows nothing of sampling. Offsets count bytes, as text-generation-inference's do.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from aiohttp import web

from router.chat import Conversation
from router.http.body import read_body
from router.http.dialect import House
from router.http.openai import NAMES as CHAT_NAMES
from router.http.openai import ChatRequest
from router.http.tgi import Generate
from router.prompts import Encoded, Names

NAMES = Names(truncate="")  # nothing is cut
PER_PIECE = 1024  # tokens; one call of the JSON encoder for all of a long text would hold Python's lock all the while
LONGEST_WRITE = 65_536  # bytes; the text of a conversation may be all of a large body

Told = dict[str, Any]


class Tokens:
    def __init__(self, house: House) -> None:
        self._house = house

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/chat_tokenize", self.chat_tokenize)]

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, Generate)
        return await answer_tokens(self._house, request, asked.inputs, NAMES, list_pieces)

    async def chat_tokenize(self, request: web.Request) -> web.StreamResponse:
        asked = await read_body(request, ChatRequest)
        return await answer_tokens(self._house, request, asked.conversation, CHAT_NAMES, chat_pieces)


async def answer_tokens(house: House, request: web.Request, text: str | Conversation, names: Names,
                        render: Callable[[Encoded], list[bytes]], *,
                        add_special_tokens: bool = True) -> web.StreamResponse:
    """Raises InvalidRequest for more tokens than the model can read."""
    pieces = await house.validator.encoded(text, names, render, add_special_tokens=add_special_tokens)
    return await send_json(request, pieces, house.config.slow_client_timeout)


def list_pieces(encoded: Encoded) -> list[bytes]:
    return [*json_pieces(simple_tokens(encoded))]


def chat_pieces(encoded: Encoded) -> list[bytes]:
    return [b'{"tokenize_response": ', *list_pieces(encoded),
            b', "templated_text": ', json.dumps(encoded.text).encode(), b"}"]


def simple_tokens(encoded: Encoded) -> Iterator[Told]:
    places = byte_places(encoded.text)
    return ({"id": token, "text": encoded.text[start:stop], "start": places[start], "stop": places[stop]}
            for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True))


def byte_places(text: str) -> Sequence[int]:
    """Where each character begins, in bytes, and where the last one ends."""
    if text.isascii():
        return range(len(text) + 1)
    return list(accumulate((len(character.encode()) for character in text), initial=0))


def json_pieces(told: Iterable[Told]) -> Iterator[bytes]:
    """The JSON of a list."""
    items, opening = iter(told), "["
    while piece := [*islice(items, PER_PIECE)]:
        yield (opening + json.dumps(piece)[1:-1]).encode()
        opening = ", "
    yield b"[]" if opening == "[" else b"]"


def split_for_writing(piece: bytes) -> Iterator[bytes]:
    """Yield parts of at most LONGEST_WRITE bytes, each of which a slow client takes within its time limit."""
    return (piece[start:start + LONGEST_WRITE] for start in range(0, len(piece), LONGEST_WRITE))


async def send_json(request: web.Request, pieces: Sequence[bytes], patience: float) -> web.StreamResponse:
    """Send a body as fast as its client reads. Raises ConnectionResetError if it does not for so many seconds."""
    response = web.StreamResponse()
    response.content_type = "application/json"
    response.content_length = sum(map(len, pieces))
    await response.prepare(request)
    try:
        for piece in chain.from_iterable(map(split_for_writing, pieces)):
            async with asyncio.timeout(patience):
                await response.write(piece)
        async with asyncio.timeout(patience):
            await response.write_eof()
    except TimeoutError:
        raise ConnectionResetError(f"the client did not read for {patience} seconds") from None
    return response
