"""Routes that tokenise texts and chats: `/tokenize` and `/chat_tokenize`.

The JSON of a token is ten to sixty times as large as its text, so it is rendered in a thread and sent in pieces.
Offsets count bytes, as in text-generation-inference.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from aiohttp import web

from router.http.openai.chat import NAMES as CHAT_NAMES
from router.http.openai.chat import ChatRequest
from router.http.tgi.routes import Generate
from router.http.transport.body import read_body
from router.http.transport.generate import House
from router.text.chat_template import Conversation
from router.text.prompts import Encoded, Names

NAMES = Names(truncate="")  # prompts are never truncated
PER_PIECE = 1024  # tokens; encoding a long text in one call would hold the GIL all the while
LONGEST_WRITE = 65_536  # bytes; the text of a conversation may be as long as a large body

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
    """Tokenise the text and send what `render` makes of it. Raises InvalidRequest if the model cannot take so many
    tokens."""
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
    """Return the byte offset of each character, and of the end."""
    if text.isascii():
        return range(len(text) + 1)
    return list(accumulate((len(character.encode()) for character in text), initial=0))


def json_pieces(told: Iterable[Told]) -> Iterator[bytes]:
    """Yield the JSON of a list, PER_PIECE items at a time."""
    items, opening = iter(told), "["
    while piece := [*islice(items, PER_PIECE)]:
        yield (opening + json.dumps(piece)[1:-1]).encode()
        opening = ", "
    yield b"[]" if opening == "[" else b"]"


def split_for_writing(piece: bytes) -> Iterator[bytes]:
    """Yield parts of at most LONGEST_WRITE bytes, each of which a slow client takes within its time limit."""
    return (piece[start:start + LONGEST_WRITE] for start in range(0, len(piece), LONGEST_WRITE))


async def send_json(request: web.Request, pieces: Sequence[bytes], patience: float) -> web.StreamResponse:
    """Send a body as fast as its client reads. Raises ConnectionResetError after `patience` seconds without a read."""
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
