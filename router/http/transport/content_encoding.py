"""Content-Encoding of request bodies: the supported encodings, and decompression within a limit.

aiohttp's own decompression is off (`server.PROTOCOL_OPTIONS`): it would also decompress bodies of rejected requests.
"""

import asyncio
import zlib
from collections.abc import Iterator

from aiohttp import web

IDENTITY = "identity"
WBITS_BY_ENCODING = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits: format and window size
RAW_DEFLATE_WBITS = -15  # wbits of deflate without zlib's header, as some clients send it
SLICE_BYTES = 65_536  # bytes of input and of output in one call of zlib, a fraction of a millisecond


class DecompressedBodyTooLarge(web.HTTPRequestEntityTooLarge):
    """HTTP error 413 for a body that exceeds the limit only once decompressed."""


def parse_content_encoding(request: web.Request) -> str:
    """Return the encoding of a body. Raises the HTTP error 415 for an unsupported one."""
    encoding = ",".join(request.headers.getall("Content-Encoding", [IDENTITY])).strip().lower()
    if encoding != IDENTITY and encoding not in WBITS_BY_ENCODING:
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Encoding must be gzip, deflate or identity, got {encoding[:40]!a}")
    return encoding


async def decompress(content: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed content, yielding to other tasks after each slice. Raises the HTTP errors 413 as soon
    as there are more than `limit` bytes, and 400 for content that is not in this encoding."""
    body = bytearray()
    try:
        for piece in decompress_in_slices(content, choose_zlib_wbits(content, encoding)):
            body += piece
            if len(body) > limit:
                raise DecompressedBodyTooLarge(max_size=limit, actual_size=len(body))
            await asyncio.sleep(0)
    except zlib.error:
        raise web.HTTPBadRequest(text=f"the body is not whole, or not in its Content-Encoding, {encoding}") from None
    return bytes(body)


def choose_zlib_wbits(content: bytes, encoding: str) -> int:
    """Return zlib's wbits for the content. Deflate is raw (without zlib's header) if the low four bits of its first
    byte are not 8, as they are in every zlib header."""
    is_raw = encoding == "deflate" and content[:1] and content[0] & 0xF != 8
    return RAW_DEFLATE_WBITS if is_raw else WBITS_BY_ENCODING[encoding]


def decompress_in_slices(content: bytes, wbits: int) -> Iterator[bytes]:
    """Yield at most SLICE_BYTES at a time. Raises zlib.error."""
    decompressor = zlib.decompressobj(wbits)
    offset, pending_input = 0, b""
    while not decompressor.eof:
        if not pending_input:
            pending_input = content[offset:offset + SLICE_BYTES]
            offset += len(pending_input)
        output = decompressor.decompress(pending_input, SLICE_BYTES)
        pending_input = decompressor.unconsumed_tail
        if not (output or pending_input or decompressor.eof) and offset == len(content):
            raise zlib.error("the content ends too early")
        yield output
    if decompressor.unused_data or offset < len(content):
        raise zlib.error("there is something behind the end")
