"""Request bodies, decompressed and validated as pydantic models, and JSON responses. No other module reads bodies."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.http.transport.content_encoding import IDENTITY, decompress, parse_content_encoding

UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
Int32 = Annotated[int, Field(ge=-2**31, lt=2**31)]
DECOMPRESSED_BODY = web.RequestKey("content", bytes)  # decompressed


class RequestBody(BaseModel):
    """Base class of request bodies. Types are as strict as TGI's: no number for a string, no 1.0 for 1, no true for 1.
    Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


BodyT = TypeVar("BodyT", bound=RequestBody)


async def read_body(request: web.Request, body_model: type[BodyT]) -> BodyT:
    """Return the validated body. Raises the HTTP errors 415, 413, 400 (not JSON) and 422 (JSON of another shape)."""
    check_media_type(request)
    return await read_body_of_any_media_type(request, body_model)


async def read_body_of_any_media_type(request: web.Request, body_model: type[BodyT]) -> BodyT:
    """Return the validated body, whatever its Content-Type. Raises HTTP errors as `read_body` does."""
    content = await read_content(request)
    try:
        return body_model.model_validate_json(content)
    except ValidationError as error:
        raise to_http_error(error) from None


async def read_content(request: web.Request) -> bytes:
    """Return the body, decompressed. Raises the HTTP errors 415, 413 and 400."""
    encoding, limit = parse_content_encoding(request), request.client_max_size - 1
    if DECOMPRESSED_BODY in request:
        return request[DECOMPRESSED_BODY]
    try:
        content = await request.read()
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="the body ends or is framed wrongly") from None
    if len(content) > limit:
        raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=len(content))
    request[DECOMPRESSED_BODY] = content if encoding == IDENTITY else await decompress(content, encoding, limit)
    return request[DECOMPRESSED_BODY]


def json_response(value: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), headers=headers, content_type="application/json")


def check_media_type(request: web.Request) -> None:
    media_type = request.content_type
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
