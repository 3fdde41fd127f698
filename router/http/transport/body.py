"""Request bodies, decompressed and validated as pydantic models, the parameters of bodies that name adapters (LoRAX's,
or OpenAI's `model`), and JSON responses, of which long ones are sent in pieces. No other module reads bodies.

aiohttp's own decompression is off (`server.PROTOCOL_OPTIONS`): it would also decompress bodies of rejected requests.
"""

import asyncio
import json
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError
from pydantic_core import from_json

from router.adapters.reference import AdapterReference, MergedAdapterReference, RequestedAdapter, ResolvedAdapter
from router.adapters.registry import AdapterRegistry
from router.errors import InvalidRequest
from router.http.transport.auth import CLIENT, KEYLESS_CLIENT
from router.http.transport.connection_limits import find_connection
from router.pydantic_errors import describe_first_error
from router.request import FairThreadPool

UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
Int32 = Annotated[int, Field(ge=-2**31, lt=2**31)]
IDENTITY = "identity"
WBITS_BY_ENCODING = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's wbits: format and window size
RAW_DEFLATE_WBITS = -15  # wbits of deflate without zlib's header, as some clients send it
SLICE_BYTES = 65_536  # bytes of input and of output in one call of zlib, a fraction of a millisecond
IGNORED_FIELDS = web.RequestKey("ignored_fields", str)  # names of the body's unknown fields; absent without any
ON_BODY_READ = web.RequestKey("on_body_read", partial)  # called when the body of a request has come
UNUSUAL_NAME_CHARACTERS = re.compile(r"[^\w.-]", re.ASCII)
MAX_REPORTED_FIELDS, MAX_FIELD_NAME_LENGTH = 8, 60
DECOMPRESSED_BODY = web.RequestKey("content", bytes)  # decompressed
# Threads in which long bodies are read and converted. Python runs one of them at a time, or the event loop: more
# threads would only take more of its time.
LONG_BODY_THREADS = web.AppKey("long_body_threads", FairThreadPool)
NUM_LONG_BODY_THREADS = 2
RefusedFields = dict[str, Sequence[object]]  # by name, the values with which a field is accepted, and has no effect
NOT_GIVEN: Sequence[object] = (None, False, [], {})
BASE_MODEL_ADAPTER_IDS = frozenset({"", "__base_model__"})  # LoRAX's names of the base model
# placeholders that clients send for the served model
BASE_MODEL_NAMES = BASE_MODEL_ADAPTER_IDS | {"tgi", "dummy", "base", "default"}
# Limits on what a body holds, checked before objects are made of it.
MAX_INLINE_VALUES = 2_048  # which are read on the event loop
MAX_INLINE_BYTES = 16_384  # of a body that is converted there
MAX_VALUES = 524_288
MAX_STRINGS, MAX_CONTAINERS = 131_072, 32_768  # names of fields are strings; containers are lists and objects
MAX_ENTRIES = 4_096  # of a list or an object, but for lists of numbers
MAX_ENTRIES_BY_FIELD = {"instances": 512, "tools": 1_024}  # of the body, or of an instance
MAX_DEPTH_OF_FIELDS = 3
MAX_ENUM_ENTRIES = 65_536  # of a JSON schema
MAX_JOINED_BYTES = 262_144  # of an answer that is sent as a whole
MAX_WRITE_BYTES = 65_536  # bytes, which a slow client takes within its time limit; an answer may be far longer
MAX_REPORTED_ERRORS = 64  # more are made into messages in a thread
NUMBERS = frozenset({int, float})
URL_PREFIXES = ("http://", "https://")  # some clients send the server's URL as `model`


class UnknownFields(NamedTuple):
    """Names of a body's unknown fields: of those that `check_refused_fields` does not refuse, and of those that it
    does; of each kind the first ones, one more than is reported."""

    ignored: list[str]
    refused: list[str]

    @property
    def has_enough_ignored(self) -> bool:
        return len(self.ignored) > MAX_REPORTED_FIELDS

    def add(self, name: str, *, is_refused: bool) -> None:
        names = self.refused if is_refused else self.ignored
        if len(names) <= MAX_REPORTED_FIELDS:
            names.append(name)


UNKNOWN_FIELDS = web.RequestKey("unknown_fields", UnknownFields)  # of the body


def wrap_single_text(value: object) -> object:
    """Wrap a single text, or a single list of token ids, in a list."""
    is_single = isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], int))
    return [value] if is_single else value


TokenIds = Annotated[list[UInt32], Field(min_length=1, fail_fast=True)]
# One text or several, each as a string or as token ids.
TextsOrTokens = Annotated[
    list[str | TokenIds], FailFast(), Field(min_length=1),
    BeforeValidator(wrap_single_text, json_schema_input_type=str | TokenIds | list[str | TokenIds])]


class BodyModel(BaseModel):
    """Base class of request bodies. Types are as strict as TGI's: no number for a string, no 1.0 for 1, no true for 1.
    Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class LenientBodyModel(BodyModel):
    """Request body, or object within one, whose unknown fields are ignored and reported: in a response header, and in
    the log of requests. `unreported_fields` are those that clients send without a meaning for the answer.

    Every field that a client's or server's types have is a field here, or one of `ignored_fields` and
    `refused_fields`. Dialects that refuse fields call `check_refused_fields`.
    """

    unreported_fields: ClassVar[frozenset[str]] = frozenset()
    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: schema.pop("additionalProperties", None))
    ignored_fields: ClassVar[frozenset[str]] = frozenset()  # have no effect here, and are reported like unknown ones
    refused_fields: ClassVar[RefusedFields] = {}

    def check_refused_fields(self, prefix: str = "") -> None:
        """Refuse fields that would change the answer, and are not served. `prefix` precedes their names in errors.
        Raises InvalidRequest."""
        for name in sorted(self.refused_fields.keys() & (self.model_extra or {}).keys()):
            if self._refuses(name):
                advice = "name the adapter in `model`" if name == "adapter_id" else "leave it out"
                raise InvalidRequest(f"`{prefix}{name}` is given, but this server does not support it; {advice}")

    def _refuses(self, name: str) -> bool:
        accepted, given_fields = self.refused_fields.get(name), self.model_extra or {}
        return accepted is not None and given_fields[name] not in accepted

    def find_unknown_fields(self) -> UnknownFields:
        """Return the unknown fields, also those of objects in fields and lists, such as `messages.0.NAME`, where null
        counts as absent."""
        found = UnknownFields([], [])
        self._add_unknown_fields(found, "")
        return found

    def _add_unknown_fields(self, found: UnknownFields, prefix: str) -> None:
        extra = self.model_extra
        if extra and (self.refused_fields or not found.has_enough_ignored):
            for name, given in extra.items():
                if not prefix or (given is not None and name not in self.unreported_fields):
                    found.add(prefix + name, is_refused=self._refuses(name))
        for field, value in self.__dict__.items():
            parts = enumerate(value) if isinstance(value, list) else ((None, value),)
            for index, part in parts:
                if not isinstance(part, LenientBodyModel):
                    break  # parts are of the same kind
                place = f"{prefix}{field}." if index is None else f"{prefix}{field}.{index}."
                part._add_unknown_fields(found, place)


BodyT = TypeVar("BodyT", bound=BodyModel)
T = TypeVar("T")


async def read_body(request: web.Request, body_model: type[BodyT], *, any_media_type: bool = False) -> BodyT:
    """Return the validated body. Raises the HTTP errors 415, 413, 400 (not JSON) and 422 (JSON of another shape). A web
    page may send any other media type than JSON without being allowed to, so from one it is refused in any case."""
    if not has_json_media_type(request) and (not any_media_type or "Origin" in request.headers):
        raise web.HTTPUnsupportedMediaType(text="the body must be sent with Content-Type: application/json")
    content = request.get(DECOMPRESSED_BODY) or await read_decompressed_body(request)
    if ON_BODY_READ in request:
        request.pop(ON_BODY_READ)()
    try:
        if content.count(b",") + content.count(b"[") + content.count(b"{") <= MAX_INLINE_VALUES:
            body, unknown_fields = parse_body(content, body_model)
        else:
            body, unknown_fields = await run_in_body_thread(request, partial(parse_large_body, content, body_model))
    except ValidationError as error:  # report the first fault, without repeating the body
        errors = await list_validation_errors(request, error)
        if errors[0]["type"] == "json_invalid":
            reason = errors[0]["msg"].removeprefix("Invalid JSON: ")
            raise web.HTTPBadRequest(text=f"Failed to parse the request body as JSON: {reason}") from None
        raise BodyValidationError(*describe_first_error(errors)) from None
    request[UNKNOWN_FIELDS] = unknown_fields
    add_ignored_fields(request, unknown_fields.ignored)
    return body


async def run_in_body_thread(request: web.Request, work: Callable[[], T]) -> T:
    """Run work on a long body in a thread. Tenants take turns. Raises Overloaded if too much work of the client's
    tenant waits."""
    return await request.app[LONG_BODY_THREADS].run(work, request.get(CLIENT, KEYLESS_CLIENT).tenant)


async def run_in_thread_if_long_body(request: web.Request, work: Callable[[], T]) -> T:
    """Return the result of work whose time grows with the body, which has been read: in a thread if that is long."""
    is_long = len(request[DECOMPRESSED_BODY]) > MAX_INLINE_BYTES
    return await run_in_body_thread(request, work) if is_long else work()


def parse_large_body(content: bytes, body_model: type[BodyT]) -> tuple[BodyT, UnknownFields]:
    """Return what `parse_body` does. Raises BodyValidationError and pydantic's ValidationError."""
    check_num_values(content)
    return parse_body(content, body_model)


def parse_body(content: bytes, body_model: type[BodyT]) -> tuple[BodyT, UnknownFields]:
    """Return the body and its unknown fields. Raises pydantic's ValidationError."""
    body = body_model.model_validate_json(content)
    return body, body.find_unknown_fields() if isinstance(body, LenientBodyModel) else UnknownFields([], [])


def check_num_values(content: bytes) -> None:
    """Refuse JSON of so many values that reading them would hold up other requests. Raises BodyValidationError."""
    pieces = content.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * MAX_STRINGS + 1)
    if len(pieces) > 2 * MAX_STRINGS + 1:
        raise BodyValidationError((), f"must hold at most {MAX_STRINGS} strings and names of fields, got more")
    between_strings = b"".join(pieces[::2])
    num_containers = between_strings.count(b"[") + between_strings.count(b"{")
    if num_containers > MAX_CONTAINERS:
        if is_nested_too_deeply(content):
            return  # the body model reports that
        raise BodyValidationError((), f"must hold at most {MAX_CONTAINERS} lists and objects, got {num_containers}")
    if (num_values := num_containers + between_strings.count(b",")) > MAX_VALUES:
        raise BodyValidationError((), f"must hold at most {MAX_VALUES} values, got {num_values}")
    with suppress(ValueError):  # the body model reports what is no JSON
        check_num_entries(from_json(content))


def is_nested_too_deeply(content: bytes) -> bool:
    """Return whether the beginning of the content is nested more deeply than JSON is read."""
    try:
        from_json(content[:SLICE_BYTES].decode(errors="ignore"), allow_partial=True)
    except ValueError as error:
        return "recursion" in str(error)
    return False


def check_num_entries(body: object) -> None:
    """Check the number of entries of every list and object, outer ones first. Raises BodyValidationError."""
    waiting: deque[tuple[tuple[str | int, ...], object]] = deque([((), body)])
    while waiting:
        location, value = waiting.popleft()
        if not isinstance(value, list | dict) or (isinstance(value, list) and NUMBERS.issuperset(map(type, value))):
            continue
        limit = get_max_entries(location)
        if len(value) > limit:
            raise BodyValidationError(location, f"must have at most {limit} entries, got {len(value)}")
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        waiting.extend(((*location, name), entry) for name, entry in entries if isinstance(entry, list | dict))


def get_max_entries(location: tuple[str | int, ...]) -> int:
    name = str(location[-1]) if location else ""
    if name == "enum":
        return MAX_ENUM_ENTRIES
    return MAX_ENTRIES_BY_FIELD.get(name, MAX_ENTRIES) if len(location) <= MAX_DEPTH_OF_FIELDS else MAX_ENTRIES


async def list_validation_errors(request: web.Request, error: ValidationError) -> Any:
    """Return pydantic's errors, in a thread if there are many."""
    list_errors = partial(error.errors, include_url=False)
    return list_errors() if error.error_count() <= MAX_REPORTED_ERRORS else await run_in_body_thread(
        request, list_errors)


def report_ignored_fields(request: web.Request, body: LenientBodyModel,
                          neutral_values: Mapping[str, Sequence[object]]) -> None:
    """Report fields of a body that was just read which other routes refuse and this one ignores, and known fields that
    it ignores, too, unless they have one of these values, which change nothing."""
    add_ignored_fields(request, [
        *request[UNKNOWN_FIELDS].refused,
        *(name for name, values in neutral_values.items() if getattr(body, name) not in values)])


def add_ignored_fields(request: web.Request, names: Sequence[str]) -> None:
    """Report these fields as ignored, besides those that were reported before."""
    if names:
        request[IGNORED_FIELDS] = ", ".join(filter(None, (request.get(IGNORED_FIELDS), format_field_names(names))))


def format_field_names(names: Sequence[str]) -> str:
    """Return the names as text for a header or the log: few, short, and with `?` for unusual characters."""
    shown = ", ".join(UNUSUAL_NAME_CHARACTERS.sub("?", name[:MAX_FIELD_NAME_LENGTH])
                      for name in names[:MAX_REPORTED_FIELDS])
    return shown + ", ..." * (len(names) > MAX_REPORTED_FIELDS)


def has_json_media_type(request: web.Request) -> bool:
    try:
        media_type = request.content_type
    except (IndexError, ValueError):  # the parser of `email` fails over some malformed headers
        return False
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


async def read_decompressed_body(request: web.Request) -> bytes:
    """Return the body, decompressed, and keep it for further calls of `read_body`. Raises the HTTP errors 415, 413 and
    400."""
    limit = request.client_max_size - 1
    encoding = IDENTITY
    if "Content-Encoding" in request.headers:
        encoding = ",".join(request.headers.getall("Content-Encoding")).strip().lower()
        if encoding != IDENTITY and encoding not in WBITS_BY_ENCODING:
            raise web.HTTPUnsupportedMediaType(
                text=f"Content-Encoding must be gzip, deflate or identity, got {encoding[:40]!a}")
    connection = find_connection(request)
    try:
        with nullcontext() if connection is None else connection.track_body_read():
            content = await request.read()
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(text="the body ends or is framed wrongly") from None
    except web.HTTPRequestEntityTooLarge:
        raise make_body_too_large_error(limit, "bytes") from None
    if len(content) > limit:  # some versions of aiohttp accept a body of exactly their limit
        raise make_body_too_large_error(limit, "bytes")
    request[DECOMPRESSED_BODY] = content if encoding == IDENTITY else await decompress(content, encoding, limit)
    return request[DECOMPRESSED_BODY]


def make_body_too_large_error(limit: int, unit: str) -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(limit, 0, text=f"the body must have at most {limit} {unit} (--payload-limit)")


async def decompress(content: bytes, encoding: str, limit: int) -> bytes:
    """Return the decompressed content, yielding to other tasks after each slice. Raises the HTTP errors 413 as soon
    as there are more than `limit` bytes, and 400 for content that is not in this encoding."""
    body = bytearray()
    # Deflate is raw (without zlib's header) if the low four bits of its first byte are not 8, as in every zlib header.
    is_raw = encoding == "deflate" and content[:1] and content[0] & 0xF != 8
    try:
        for piece in decompress_in_slices(content, RAW_DEFLATE_WBITS if is_raw else WBITS_BY_ENCODING[encoding]):
            body += piece
            if len(body) > limit:
                raise make_body_too_large_error(limit, "bytes once decompressed")
            await asyncio.sleep(0)
    except zlib.error:
        raise web.HTTPBadRequest(text=f"the body is not whole, or not in its Content-Encoding, {encoding}") from None
    return bytes(body)


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


class ListJson(NamedTuple):
    """JSON of an answer with a list, in ASCII, with that of each item. To join all of a long list, and to send it at
    once, would hold up other requests."""

    opening: str  # what is before the first item
    items: Sequence[str]
    closing: str

    @property
    def text(self) -> str:
        return f"{self.opening}{','.join(self.items)}{self.closing}"

    @property
    def num_bytes(self) -> int:
        return len(self.opening) + sum(map(len, self.items)) + max(len(self.items) - 1, 0) + len(self.closing)

    def iterate_pieces(self) -> Iterator[bytes]:
        """Yield the JSON in pieces of about MAX_WRITE_BYTES."""
        text = self.opening
        for index, item in enumerate(self.items):
            text += "," * (index > 0)
            for start in range(0, max(len(item), 1), MAX_WRITE_BYTES):
                text += item[start:start + MAX_WRITE_BYTES]
                if len(text) >= MAX_WRITE_BYTES:
                    yield text.encode("ascii")
                    text = ""
        yield f"{text}{self.closing}".encode("ascii")


async def json_list_response(request: web.Request, answer: ListJson, headers: Mapping[str, str],
                             slow_client_timeout: float) -> web.StreamResponse:
    """Respond with the answer, in pieces if it is long. Raises ConnectionResetError as `send_json`."""
    if (num_bytes := answer.num_bytes) <= MAX_JOINED_BYTES:
        return json_text_response(answer.text, headers)
    return await send_json(request, answer.iterate_pieces(), num_bytes, slow_client_timeout, headers=headers)


async def send_json(request: web.Request, pieces: Iterable[bytes], num_bytes: int, slow_client_timeout: float, *,
                    headers: Mapping[str, str]) -> web.StreamResponse:
    """Send pieces with `num_bytes` together as fast as the client reads. Raises ConnectionResetError after
    `slow_client_timeout` seconds without a read."""
    response, connection = web.StreamResponse(headers=headers), find_connection(request)
    response.content_type, response.content_length = "application/json", num_bytes
    await response.prepare(request)
    with nullcontext() if connection is None else connection.track_answer_write(num_bytes):
        try:
            for piece in pieces:
                for start in range(0, len(piece), MAX_WRITE_BYTES):
                    written = piece[start:start + MAX_WRITE_BYTES]
                    if connection is not None:
                        connection.num_unwritten_bytes -= len(written)
                    async with asyncio.timeout(slow_client_timeout):
                        await response.write(written)
            async with asyncio.timeout(slow_client_timeout):
                await response.write_eof()
        except TimeoutError:
            raise ConnectionResetError(f"the client did not read for {slow_client_timeout} seconds") from None
    return response


class BodyValidationError(web.HTTPUnprocessableEntity):
    """HTTP error 422: JSON of another shape. `param` is the top-level field, `fault` the location and the fault."""

    def __init__(self, location: Sequence[str | int], fault: str) -> None:
        self.param = str(location[0]) if location else ""
        place = f"`{'.'.join(map(str, location))}`" if location else "the body"
        self.fault = f"{place} {fault}"
        super().__init__(text=f"Failed to deserialize the JSON body into the target type: {self.fault}")


class MergedAdapters(LenientBodyModel):
    """Adapters to merge into one. `density` is 1 by default; LoRAX's default, 0, would drop every weight."""

    ids: Annotated[list[str], FailFast()]
    weights: Annotated[list[float], FailFast()] = Field(default_factory=list)
    merge_strategy: str | None = None
    density: float = 1.0
    majority_sign_method: str | None = None


class AdapterParameters(LenientBodyModel):
    """Parameters that name the adapter of a request, or several adapters to merge."""

    adapter_id: str | None = None
    adapter_source: str | None = None
    merged_adapters: MergedAdapters | None = None
    api_token: str | None = Field(default=None, repr=False)

    def adapter_reference(self, source_token: str) -> RequestedAdapter | None:
        """Return the adapter or merge, if one is named. `source_token` is the client's, unless the parameters have
        another."""
        source, source_token = self.adapter_source or None, self.api_token or source_token
        if (merged := self.merged_adapters) is not None:
            return MergedAdapterReference(
                tuple(AdapterReference(name, source, source_token) for name in merged.ids), tuple(merged.weights),
                (merged.merge_strategy or "linear").lower(), merged.density,
                (merged.majority_sign_method or "total").lower())
        return (AdapterReference(self.adapter_id, source, source_token)
                if self.adapter_id and self.adapter_id not in BASE_MODEL_ADAPTER_IDS else None)


def is_base_model(model: str | None, served_names: tuple[str, ...]) -> bool:
    """Whether `model` names the base model, which is served under these names."""
    return (model is None or model in served_names or model in BASE_MODEL_NAMES
            or model.lower().startswith(URL_PREFIXES))


def adapter_for_stream_headers(registry: AdapterRegistry | None,
                               adapter_reference: RequestedAdapter | None) -> AdapterReference | ResolvedAdapter | None:
    """Return the adapter for the headers of a stream, which are sent before the adapter is known to exist."""
    try:
        return None if registry is None else registry.get_canonical_reference(adapter_reference)
    except InvalidRequest:
        return None
