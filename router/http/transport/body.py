"""Request bodies, decompressed and validated as pydantic models, and JSON responses. No other module reads bodies."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.http.transport.content_encoding import IDENTITY, decompress, encoding_of

Unsigned = Annotated[int, Field(ge=0, lt=2**64)]
Unsigned32 = Annotated[int, Field(ge=0, lt=2**32)]
Integer32 = Annotated[int, Field(ge=-2**31, lt=2**31)]
CONTENT = web.RequestKey("content", bytes)  # decompressed


class Foreign(BaseModel):
    """Base class of request bodies. Types are as strict as TGI's: no number for a string, no 1.0 for 1, no true for 1.
    Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


F = TypeVar("F", bound=Foreign)


async def read_body(request: web.Request, shape: type[F]) -> F:
    """Return the validated body. Raises the HTTP errors 415, 413, 400 (not JSON) and 422 (JSON of another shape)."""
    check_media_type(request)
    return await read_untyped(request, shape)


async def read_untyped(request: web.Request, shape: type[F]) -> F:
    """Return the validated body, whatever its Content-Type. Raises HTTP errors as `read_body` does."""
    content = await read_content(request)
    try:
        return shape.model_validate_json(content)
    except ValidationError as error:
        raise malformed(error) from None


async def read_content(request: web.Request) -> bytes:
    """Return the body, decompressed. Raises the HTTP errors 415, 413 and 400."""
    encoding, limit = encoding_of(request), request.client_max_size - 1
    if CONTENT in request:
        return request[CONTENT]
    try:
        content = await request.read()
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="the body ends or is framed wrongly") from None
    if len(content) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(content))
    request[CONTENT] = content if encoding == IDENTITY else await decompress(content, encoding, limit)
    return request[CONTENT]


def json_answer(told: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=json.dumps(told).encode(), headers=headers, content_type="application/json")


def check_media_type(request: web.Request) -> None:
    kind = request.content_type
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise web.HTTPUnsupportedMediaType(text="the body must be sent with Content-Type: application/json")


class WrongShape(web.HTTPUnprocessableEntity):
    """HTTP error 422: JSON of another shape. `param` is the top-level field, `what` the location and the fault."""

    def __init__(self, where: Sequence[str | int], what: str) -> None:
        self.param = str(where[0]) if where else ""
        self.what = f"`{'.'.join(map(str, where)) or 'body'}`: {what}"
        super().__init__(text=f"Failed to deserialize the JSON body into the target type: {self.what}")


def malformed(error: ValidationError) -> web.HTTPException:
    """Return the HTTP error for the first fault, with a message that does not repeat the body."""
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return web.HTTPBadRequest(text=f"Failed to parse the request body as JSON: {first['msg']}")
    return WrongShape(first["loc"], first["msg"])
