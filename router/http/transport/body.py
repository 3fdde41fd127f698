"""Request bodies, decompressed and validated as pydantic models, and JSON responses. No other module reads bodies.

aiohttp's own decompression is off (`server.PROTOCOL_OPTIONS`): it would also decompress bodies of rejected requests.
"""

import asyncio
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
Int32 = Annotated[int, Field(ge=-2**31, lt=2**31)]
IDENTITY = "identity"
WBITS_BY_ENCODING = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits: format and window size
RAW_DEFLATE_WBITS = -15  # wbits of deflate without zlib's header, as some clients send it
SLICE_BYTES = 65_536  # bytes of input and of output in one call of zlib, a fraction of a millisecond
DECOMPRESSED_BODY = web.RequestKey("content", bytes)  # decompressed


class RequestBody(BaseModel):
    """Base class of request bodies. Types are as strict as TGI's: no number for a string, no 1.0 for 1, no true for 1.
    Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=RequestBody)


async def read_body(request: web.Request, body_model: type[BodyT], *, any_media_type: bool = False) -> BodyT:
    """Return the validated body. Raises the HTTP errors 415, 413, 400 (not JSON) and 422 (JSON of another shape)."""
    if not any_media_type and request.content_type != "application/json":
        check_media_type(request.content_type)
    content = request.get(DECOMPRESSED_BODY) or await read_content(request)
    try:
        return body_model.model_validate_json(content)
    except ValidationError as error:
        raise to_http_error(error) from None


async def read_content(request: web.Request) -> bytes:
    """Return the body, decompressed, and keep it for further calls of `read_body`. Raises the HTTP errors 415, 413 and
    400."""
    limit = request.client_max_size - 1
    encoding = parse_content_encoding(request) if "Content-Encoding" in request.headers else IDENTITY
    try:
        content = await request.read()
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="the body ends or is framed wrongly") from None
    except web.HTTPRequestEntityTooLarge:
        raise body_too_large(limit, "bytes") from None
    if len(content) > limit:  # some versions of aiohttp accept a body of exactly their limit
        raise body_too_large(limit, "bytes")
    request[DECOMPRESSED_BODY] = content if encoding == IDENTITY else await decompress(content, encoding, limit)
    return request[DECOMPRESSED_BODY]


def body_too_large(limit: int, unit: str) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(limit, 0, text=f"the body must have at most {limit} {unit} (--payload-limit)")


def parse_content_encoding(request: web.Request) -> str:
    """Return the encoding of a body. Raises the HTTP error 415 for an unsupported one."""
    encoding = ",".join(request.headers.getall("Content-Encoding")).strip().lower()
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
                raise body_too_large(limit, "bytes once decompressed")
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


def json_text_response(body: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body.encode(), headers=headers, content_type="application/json")


def json_response(value: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_text_response(json.dumps(value), headers)


def check_media_type(media_type: str) -> None:
    if media_type != "application/json" and not (media_type.startswith("application/")
                                                 and media_type.endswith("+json")):
        raise web.HTTPUnsupportedMediaType(text="the body must be sent with Content-Type: application/json")


class BodyValidationError(web.HTTPUnprocessableEntity):
    """HTTP error 422: JSON of another shape. `param` is the top-level field, `fault` the location and the fault."""

    def __init__(self, location: Sequence[str | int], fault: str) -> None:
        self.param = str(location[0]) if location else ""
        self.fault = f"`{'.'.join(map(str, location)) or 'body'}`: {fault}"
        super().__init__(text=f"Failed to deserialize the JSON body into the target type: {self.fault}")


def to_http_error(error: ValidationError) -> web.HTTPException:
    """Return the HTTP error for the first fault, with a message that does not repeat the body."""
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return web.HTTPBadRequest(text=f"Failed to parse the request body as JSON: {first['msg']}")
    return BodyValidationError(first["loc"], first["msg"])
