"""Content-Encoding of request bodies: the supported encodings, and decompression within a limit.

aiohttp's own decompression is off (`server.PROTOCOL`): it would decompress the bodies of rejected requests, too.
"""

import asyncio
import zlib
from collections.abc import Iterator

from aiohttp import web

IDENTITY = "identity"
WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits: format and window size
RAW_DEFLATE = -15  # wbits of deflate without zlib's header, as some clients send it
SLICE = 65_536  # bytes of input and of output in one call of zlib, a fraction of a millisecond


class TooLargeDecompressed(web.HTTPRequestEntityTooLarge):
    """HTTP error 413 for a body that exceeds the limit only once decompressed."""


def encoding_of(request: web.Request) -> str:
    """Return the encoding of a body. Raises the HTTP error 415 for an unsupported one."""
    given = ",".join(request.headers.getall("Content-Encoding", [IDENTITY])).strip().lower()
    if given != IDENTITY and given not in WINDOWS:
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Encoding must be gzip, deflate or identity, got {given[:40]!a}")
    return given


async def decompress(content: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed content, yielding to other tasks after each slice. Raises the HTTP errors 413 as soon
    as there are more than `limit` bytes, and 400 for content that is not in this encoding."""
    body = bytearray()
    try:
        for piece in slices(content, window_of(content, encoding)):
            body += piece
            if len(body) > limit:
                raise TooLargeDecompressed(max_size=limit, actual_size=len(body))
            await asyncio.sleep(0)
    except zlib.error:
        raise web.HTTPBadRequest(text=f"the body is not whole, or not in its Content-Encoding, {encoding}") from None
    return bytes(body)


def window_of(content: bytes, encoding: str) -> int:
    """Return zlib's wbits for the content. Deflate is raw (without zlib's header) if the low four bits of its first
    byte are not 8, as they are in every zlib header."""
    is_raw = encoding == "deflate" and content[:1] and content[0] & 0xF != 8
    return RAW_DEFLATE if is_raw else WINDOWS[encoding]


def slices(content: bytes, window: int) -> Iterator[bytes]:
    """Yield at most SLICE bytes at a time. Raises zlib.error."""
    decompressor = zlib.decompressobj(window)
    offset, rest = 0, b""
    while not decompressor.eof:
        if not rest:
            rest = content[offset:offset + SLICE]
            offset += len(rest)
        made = decompressor.decompress(rest, SLICE)
        rest = decompressor.unconsumed_tail
        if not (made or rest or decompressor.eof) and offset == len(content):
            raise zlib.error("the content ends too early")
        yield made
    if decompressor.unused_data or offset < len(content):
        raise zlib.error("there is something behind the end")
