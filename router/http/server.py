"""The aiohttp application (all routes, and the middleware around their handlers) and its server with graceful shutdown.
The stand-in answers probes on the same socket while the main application is not ready or shuts down. Every error is
sent in the format of its route's dialect."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.typedefs import Handler

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.engine.engine import Engine
from router.errors import AdapterNotFound, Cancelled, InvalidRequest, make_not_ready_error
from router.http.anthropic.routes import AnthropicRoutes
from router.http.docs import DocsRoutes
from router.http.lorax.rendering import lorax_error_reply
from router.http.lorax.routes import LoraxRoutes
from router.http.ollama.model_routes import OllamaModelRoutes
from router.http.ollama.routes import OllamaRoutes
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.responses import ResponsesRoutes
from router.http.page.routes import PageRoutes, StartupProgressPageRoutes
from router.http.routes.adapters import AdapterRoutes
from router.http.routes.batching_study_compat import BatchingStudyCompatRoutes
from router.http.routes.clouds import CloudRoutes
from router.http.routes.engine_inspection import EngineInspectionRoutes
from router.http.routes.pooling import PoolingRoutes
from router.http.routes.scoring import ScoringRoutes
from router.http.routes.status import InfoRoutes, MetricsRoutes, ProbeRoutes
from router.http.routes.tokenize import TokenizeRoutes
from router.http.tgi.routes import TgiRoutes
from router.http.transport.auth import find_allowed_hosts
from router.http.transport.body import LONG_BODY_THREADS, NUM_LONG_BODY_THREADS
from router.http.transport.connection_limits import (
    Connection,
    ConnectionDrain,
    ConnectionLimits,
    Connections,
    connection_middleware,
)
from router.http.transport.error_responses import (
    COMPATS_WITH_OWN_ERRORS,
    ErrorReply,
    OpenAIErrorReply,
    TgiErrorReply,
    find_error_reply_type,
    shorten_message,
)
from router.http.transport.request_context_and_middleware import (
    add_request_id_header,
    create_request_middleware,
    create_tracing_middleware,
    ignored_fields_headers,
)
from router.http.transport.services import RequestGroupBudget, ServedModel, Services
from router.http.transport.sse import PumpFlusher
from router.request import FairThreadPool
from router.telemetry.spans import RequestSpanFactory
from router.validation.validator import RequestValidator
from shard.telemetry.span_export_interface import SpanSender

COPIED_ERROR_HEADERS = ("Allow", "WWW-Authenticate")
# Paths of OpenAI's clients whose base URL lacks /v1.
OPENAI_PATHS_WITHOUT_VERSION = frozenset({"/chat/completions", "/completions", "/embeddings", "/models", "/responses"})
LLAMA_CPP_COMPLETION_PATH = "/completion"
ALLOWED_METHODS = "GET, POST, DELETE"
PREFLIGHT_MAX_AGE = "600"  # seconds for which a browser may cache a preflight response
REQUESTED_METHOD_HEADER = "Access-Control-Request-Method"
SHUTDOWN_WRITE_SECONDS = 2.0  # for a complete response to reach its client during shutdown
# for the rest of an unread body: some clients read the response only after sending all of it
UNREAD_BODY_DRAIN_SECONDS = 2.0
BACKLOG = 1024
# aiohttp's handling of bodies. They are decompressed by `read_decompressed_body`, only after the key is checked.
PROTOCOL_OPTIONS: dict[str, Any] = {"auto_decompress": False, "lingering_time": UNREAD_BODY_DRAIN_SECONDS}

logger = logging.getLogger(__name__)


def create_app(engine: Engine, validator: RequestValidator, config: RouterConfig, api_keys: ApiKeys,
               served_model: ServedModel, *, span_sender: SpanSender | None = None,
               settings: Sequence[Mapping[str, Any]] = ()) -> web.Application:
    """Create the application. An empty `served_model.name` is replaced by the shards' name of the model; spans are sent
    only with a `span_sender`. `settings` are those of the server, with their sources."""
    served_model = replace(served_model, name=served_model.name or engine.model_info.model)
    tracing_middlewares = ([] if span_sender is None
                           else [create_tracing_middleware(RequestSpanFactory(span_sender, served_model.name))])
    # Some versions of aiohttp reject bodies of exactly their limit; --payload-limit is inclusive.
    app = web.Application(client_max_size=config.payload_limit + 1, middlewares=[
        *tracing_middlewares,
        create_request_middleware(api_keys, partial(render_failure, compat=config.compat), engine,
                                  logs_requests=config.request_log, allowed_hosts=find_allowed_hosts(config))])
    app[LONG_BODY_THREADS] = FairThreadPool(NUM_LONG_BODY_THREADS, config.max_concurrent_requests, "bodies",
                                            "long bodies wait to be read")
    app.on_cleanup.append(close_long_body_threads)
    services = Services(engine, validator, config, served_model, PumpFlusher(),
                        RequestGroupBudget(max(config.max_client_batch_size, config.max_concurrent_requests // 2)))
    first_routes: dict[tuple[str, str], web.RouteDef] = {}
    pooling_routes, probe_routes = PoolingRoutes(services), ProbeRoutes(engine.why_unavailable, lambda: None)
    for route in [
        *pooling_routes.root_routes(), *create_dialect_routes(services), *pooling_routes.routes(),
        *ScoringRoutes(services).routes(),
        *TokenizeRoutes(services).routes(), *InfoRoutes(services).routes(), *AdapterRoutes(services).routes(),
        *EngineInspectionRoutes(services, settings).routes(),
        *DocsRoutes(config.compat, config.dialect).routes(),
        *MetricsRoutes(engine, validator.adapter_registry, allows_json=services.is_lorax).routes(),
        *PageRoutes(probe_routes.health, is_enabled=config.ui).routes(), *probe_routes.routes()]:
        first_routes.setdefault((route.method, route.path), route)  # a dialect's routes come before others
    app.add_routes(first_routes.values())
    app.on_response_prepare.append(add_request_id_header)
    allow_cors_origins(app, config.cors_allow_origin)
    return app


async def close_long_body_threads(app: web.Application) -> None:
    app[LONG_BODY_THREADS].close()


def create_dialect_routes(services: Services) -> list[web.RouteDef]:
    """Return the routes of the enabled dialects. A route of several belongs to the first."""
    tgi_routes, chat_routes, completion_routes = TgiRoutes(services), ChatRoutes(services), CompletionRoutes(services)
    study_routes = BatchingStudyCompatRoutes(services).routes() if services.config.dialect == "batching" else []
    routes = [*study_routes, *tgi_routes.routes(), *chat_routes.routes(), *completion_routes.routes(),
              *ResponsesRoutes(services).routes(), *AnthropicRoutes(services).routes(),
              *OllamaRoutes(services).routes(), *OllamaModelRoutes(services).routes()]
    if not services.is_lorax:
        return [*routes, *CloudRoutes(services, tgi_routes.compat_generate, chat_routes.chat,
                                      completion_routes.complete).routes()]
    lorax_routes = LoraxRoutes(services)
    return [*lorax_routes.routes(), *routes, *CloudRoutes(services, lorax_routes.compat_generate, lorax_routes.chat,
                                                          lorax_routes.complete).routes()]


def create_stand_in_app(probes: ProbeRoutes, api_keys: ApiKeys, extra_routes: Iterable[web.RouteDef] = (), *,
                        compat: str = "none", make_page_routes: Callable[[Handler], list[web.RouteDef]]
                        = lambda _: []) -> web.Application:
    """Create an application that answers probes and the routes in `extra_routes`, and rejects all others with 503.
    `make_page_routes` returns those for browsers; it is given what answers `/` for others.

    Its probes never say that the server is ready: that is for the application that follows.
    """
    def why_unavailable() -> str:
        return probes.why_unavailable() or "it is starting"

    async def reject_not_ready(_: web.Request) -> NoReturn:
        raise make_not_ready_error(why_unavailable())

    app = web.Application(middlewares=[create_request_middleware(api_keys, partial(render_failure, compat=compat))])
    own_probes = replace(probes, why_unavailable=why_unavailable)
    routes: dict[tuple[str, str], web.RouteDef] = {}
    for route in [*make_page_routes(own_probes.health), *extra_routes, *own_probes.routes()]:
        routes.setdefault((route.method, route.path), route)
    app.add_routes([*routes.values(), web.route("*", "/{path:.*}", reject_not_ready)])
    app.on_response_prepare.append(add_request_id_header)
    return app


def render_failure(request: web.Request, error: Exception, compat: str) -> web.Response:
    """Return the response for an exception, in the format of the route's dialect."""
    if isinstance(error, Cancelled | ConnectionError):
        return abort_connection(request)
    response = error_reply_for_route(request, error, compat).to_response()
    response.headers.update(ignored_fields_headers(request))
    if isinstance(error, web.HTTPException):
        response.headers.update({name: error.headers[name] for name in COPIED_ERROR_HEADERS if name in error.headers})
    return response


def error_reply_for_route(request: web.Request, error: Exception, compat: str) -> ErrorReply:
    reply_type = find_error_reply_type(request.path, compat)
    if isinstance(error, web.HTTPException) and error is request.match_info.http_exception:
        if request.path in OPENAI_PATHS_WITHOUT_VERSION and compat not in COMPATS_WITH_OWN_ERRORS:
            reply_type = OpenAIErrorReply  # its clients show no other
        reply = replace(reply_type.from_exception(error),
                        message=shorten_message(describe_missing_route(request, error)))
        if not isinstance(reply, OpenAIErrorReply) or error.status == web.HTTPMethodNotAllowed.status_code:
            return reply
        return replace(reply, code="unknown_url")
    if reply_type is not TgiErrorReply:
        return reply_type.from_exception(error)
    if compat == "lorax" and not isinstance(error, web.HTTPException):
        lorax_reply = lorax_error_reply(error)
        is_invalid_embedding = isinstance(error, InvalidRequest) and request.path == "/v1/embeddings"
        return replace(lorax_reply, status=400, error_type="invalid_input") if is_invalid_embedding else lorax_reply
    if isinstance(error, AdapterNotFound) and request.path.startswith("/v1/"):  # where an adapter is named as a model
        return TgiErrorReply(404, "model_not_found", shorten_message(str(error)))
    return TgiErrorReply.from_exception(error)


def describe_missing_route(request: web.Request, error: web.HTTPException) -> str:
    """Describe that no route has the request's path, or none with its method."""
    message = f"there is no {request.method} {request.path} here"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{message}, only {' and '.join(sorted(error.allowed_methods))}"
    if request.path in OPENAI_PATHS_WITHOUT_VERSION:
        return f"{message}, but /v1{request.path}; the base URL of OpenAI's clients must end with /v1"
    if request.path.startswith("/v1/v1/"):
        return f"{message}, but {request.path.removeprefix('/v1')}; /v1 stands in the client's base URL already"
    if request.path == LLAMA_CPP_COMPLETION_PATH:
        return f"{message}; completions are at /v1/completions"
    return f"{message}; GET /docs lists the routes"


def abort_connection(request: web.Request) -> web.Response:
    """Abort the connection without a response; the returned one is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


def allow_cors_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Allow these origins to read the responses of `app`; without origins, change nothing.

    CORS is no access control: only browsers respect it. They send preflight requests without a key, so these are
    answered before keys are checked.
    """
    if not origins:
        return

    async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers to streams and errors, too, so that a page can read why a request was rejected."""
        origin = "*" if "*" in origins else request.headers.get("Origin", "")
        if origin in origins:
            response.headers.update({"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"})
        if "*" not in origins:
            response.headers["Vary"] = "Origin"  # a cached response is valid for one origin only

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(add_cors_headers)


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer preflight requests and pass on all others. Any header is allowed, `Authorization` and those of client
    libraries included: a page can only send a key that it knows."""
    if request.method != "OPTIONS" or REQUESTED_METHOD_HEADER not in request.headers or "Origin" not in request.headers:
        return await handler(request)
    requested_headers = request.headers.get("Access-Control-Request-Headers", "content-type, authorization")
    return web.Response(headers={"Access-Control-Allow-Methods": ALLOWED_METHODS,
                                 "Access-Control-Allow-Headers": requested_headers,
                                 "Access-Control-Max-Age": PREFLIGHT_MAX_AGE})


class HttpServer:
    """aiohttp server of one application. On shutdown it first stops accepting connections, then closes the open ones
    after their response."""

    def __init__(self, app: web.Application, connections: Connections | None = None, *,
                 closes_after_response: bool = False) -> None:
        """With `closes_after_response`, every connection is closed after its next response."""
        self._connections = Connections(ConnectionLimits()) if connections is None else connections
        self._drain = ConnectionDrain(closes_after_response)
        self._listener: asyncio.Server | None = None
        app.middlewares.insert(0, connection_middleware)
        logger.addFilter(should_log_record)
        # A client that disconnects cancels its handler, and thereby its request.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_WRITE_SECONDS)

    async def start(self, listening_socket: socket.socket) -> int:
        """Serve on a duplicate of this socket, which the caller still owns. Return the port."""
        await self._runner.setup()
        http_server = self._runner.server
        assert http_server is not None, "setup creates it"
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(http_server, self._connections, self._drain, access_log=None, logger=logger,
                               **PROTOCOL_OPTIONS),
            sock=listening_socket.dup(), backlog=BACKLOG)
        return int(listening_socket.getsockname()[1])

    async def stop_accepting(self) -> None:
        """Accept no more connections. Open ones may send one more request, which may already be in transit."""
        self._drain.is_draining = True
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        await self.stop_accepting()
        await self._runner.cleanup()


def should_log_record(record: logging.LogRecord) -> bool:
    """Whether to log a record. Input that is not HTTP is answered with 400 and must not fill the log."""
    return not record.exc_info or not isinstance(record.exc_info[1], HttpProcessingError)


@dataclass(frozen=True, slots=True)
class StandInServer:
    """Listening socket of the router, and the server that answers probes on it while the main application is not ready
    or shuts down."""

    listening_socket: socket.socket
    api_keys: ApiKeys
    cors_origins: tuple[str, ...]
    compat: str
    connections: Connections = field(default_factory=lambda: Connections(ConnectionLimits()))  # of both servers
    has_page: bool = True  # for browsers
    _servers: list[HttpServer] = field(default_factory=list)  # one, or none

    @classmethod
    def from_config(cls, config: RouterConfig, listen_fd: int = -1) -> "StandInServer":
        """Use the inherited socket `listen_fd`, or else open one. Raises ValueError and OSError."""
        check_http_parser()
        api_keys = ApiKeys.from_config(config)
        inherited_socket = socket.socket(fileno=listen_fd) if listen_fd >= 0 else None
        listening_socket = inherited_socket or create_listening_socket(config.hostname, config.port)
        return cls(listening_socket, api_keys, config.cors_allow_origin, config.compat,
                   Connections(ConnectionLimits.from_config(config)), config.ui)

    async def start_during_startup(self, engine: Engine,
                                   get_startup_progress: Callable[[], dict[str, Any] | None]) -> None:
        """Start the stand-in during startup, before any request is served."""
        await self._start(ProbeRoutes(engine.why_unavailable, get_startup_progress), (), lambda probe: (
            StartupProgressPageRoutes(probe, get_startup_progress, is_enabled=self.has_page).routes()))

    async def start_during_shutdown(self, engine: Engine) -> None:
        """Start the stand-in during shutdown. It serves metrics, too, since requests may still be running."""
        await self._start(ProbeRoutes(engine.why_unavailable, lambda: None), MetricsRoutes(engine).routes())

    async def _start(self, probes: ProbeRoutes, extra_routes: Iterable[web.RouteDef],
                     make_page_routes: Callable[[Handler], list[web.RouteDef]] = lambda _: []) -> None:
        stand_in_app = create_stand_in_app(probes, self.api_keys, extra_routes, compat=self.compat,
                                           make_page_routes=make_page_routes)
        allow_cors_origins(stand_in_app, self.cors_origins)
        await self.start(stand_in_app)

    async def start(self, stand_in_app: web.Application) -> None:
        self._servers.append(HttpServer(stand_in_app, self.connections, closes_after_response=True))
        await self._servers[-1].start(self.listening_socket)

    async def stop(self) -> None:
        """Stop the stand-in. The socket stays open."""
        while self._servers:
            await self._servers.pop().close()

    async def close(self) -> None:
        await self.stop()
        self.listening_socket.close()


def check_http_parser() -> None:
    """Raise ValueError if aiohttp would parse requests with its parser in Python, which is ten times as slow and has
    more often read requests otherwise than proxies do."""
    if HttpRequestParser.__module__ == "aiohttp.http_parser":
        raise ValueError("aiohttp has no HTTP parser in C here: install it from a wheel, without the variable "
                         "AIOHTTP_NO_EXTENSIONS")


def create_listening_socket(hostname: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
