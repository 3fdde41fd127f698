"""The aiohttp application: all routes, and the middleware around their handlers. Every error is sent in the format of
its route's dialect.

`create_stand_in_app` makes the application that answers probes while the main one is not ready or shuts down. Serve
both with `handler_cancellation=True`, so that a request is cancelled when its client disconnects.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.errors import AdapterNotFound, Cancelled, InvalidRequest, NotReady
from router.http.docs.page import DocsRoutes
from router.http.lorax.rendering import lorax_error_reply
from router.http.lorax.routes import LoraxRoutes
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.routes.adapters import AdapterRoutes
from router.http.routes.batching_study import BatchingStudyRoutes
from router.http.routes.classify import ClassifyRoutes
from router.http.routes.clouds import CloudRoutes
from router.http.routes.embeddings import EmbeddingRoutes
from router.http.routes.info import InfoRoutes
from router.http.routes.probes import MetricsRoutes, ProbeRoutes
from router.http.routes.request_timeline import RequestTimelineRoutes
from router.http.routes.tokenize import TokenizeRoutes
from router.http.tgi.routes import TgiRoutes
from router.http.transport.auth import CLIENT, KEYLESS_CLIENT, authenticate
from router.http.transport.cors import allow_cors_origins
from router.http.transport.errors import (
    OpenAIErrorReply,
    TgiErrorReply,
    error_label,
    has_openai_error_format,
    shorten_message,
)
from router.http.transport.request_context import (
    FAILURE_TYPE,
    REQUEST_COUNTER,
    REQUEST_ID,
    create_tracing_middleware,
    request_id_header,
)
from router.http.transport.services import EngineClient, ServedModel, Services
from router.http.transport.sse import PumpFlusher
from router.telemetry.server_metrics import RequestMetrics
from router.telemetry.spans import RequestSpanFactory
from router.validation.validator import RequestValidator
from shard.telemetry.tracing import SpanSender

COPIED_ERROR_HEADERS = ("Allow", "WWW-Authenticate")


def create_app(engine: EngineClient, validator: RequestValidator, config: RouterConfig, api_keys: ApiKeys,
               served_model: ServedModel, *, span_sender: SpanSender | None = None) -> web.Application:
    """Create the application. An empty `served_model.name` is replaced by the shards' name of the model; spans are sent
    only with a `span_sender`."""
    served_model = ServedModel(served_model.name or engine.model_info.model, served_model.notice)
    tracing_middlewares = ([] if span_sender is None
                           else [create_tracing_middleware(RequestSpanFactory(span_sender, served_model.name))])
    # Some versions of aiohttp reject bodies of exactly their limit; --payload-limit is inclusive.
    app = web.Application(client_max_size=config.payload_limit + 1, middlewares=[
        *tracing_middlewares, create_request_middleware(api_keys, config.compat, engine.server_metrics.requests)])
    services = Services(engine, validator, config, served_model, PumpFlusher())
    app.add_routes(drop_duplicate_routes([
        *create_dialect_routes(services), *EmbeddingRoutes(services).routes(), *ClassifyRoutes(services).routes(),
        *TokenizeRoutes(services).routes(), *InfoRoutes(services).routes(), *AdapterRoutes(services).routes(),
        *DocsRoutes(config.compat, config.dialect).routes(),
        *MetricsRoutes(engine, allows_json=services.is_lorax).routes(), *RequestTimelineRoutes(engine).routes(),
        *ProbeRoutes(engine.why_unavailable, lambda: None).routes()]))
    allow_cors_origins(app, config.cors_allow_origin)
    return app


def create_dialect_routes(services: Services) -> list[web.RouteDef]:
    """Return the routes of the enabled dialects. A route of several belongs to the first (see
    `drop_duplicate_routes`)."""
    tgi_routes, chat_routes, completion_routes = TgiRoutes(services), ChatRoutes(services), CompletionRoutes(services)
    study_routes = BatchingStudyRoutes(services).routes() if services.config.dialect == "batching" else []
    routes = [*study_routes, *tgi_routes.routes(), *chat_routes.routes(), *completion_routes.routes()]
    if not services.is_lorax:
        return [*routes, *CloudRoutes(services, tgi_routes.compat_generate, chat_routes.chat,
                                      completion_routes.complete).routes()]
    lorax_routes = LoraxRoutes(services)
    return [*lorax_routes.routes(), *routes, *CloudRoutes(services, lorax_routes.compat_generate, lorax_routes.chat,
                                                          lorax_routes.complete).routes()]


def drop_duplicate_routes(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    first_routes: dict[tuple[str, str], web.RouteDef] = {}
    for route in routes:
        first_routes.setdefault((route.method, route.path), route)
    return [*first_routes.values()]


def create_stand_in_app(probes: ProbeRoutes, api_keys: ApiKeys, extra_routes: Iterable[web.RouteDef] = (), *,
                        compat: str = "none") -> web.Application:
    """Create an application that answers probes and the routes in `extra_routes`, and rejects all others with 503."""
    async def reject_not_ready(_: web.Request) -> NoReturn:
        raise NotReady(probes.why_unavailable() or "it is about to be")

    app = web.Application(middlewares=[create_request_middleware(api_keys, compat)])
    app.add_routes([*probes.routes(), *extra_routes, web.route("*", "/{path:.*}", reject_not_ready)])
    return app


def create_request_middleware(api_keys: ApiKeys, compat: str,
                              request_metrics: RequestMetrics | None = None) -> Middleware:
    """Return the middleware that authenticates requests, counts them, and turns exceptions into error responses.

    A request is counted when its handler calls `RequestContext.from_request`, and again when it is answered or fails.
    """
    are_keys_required = api_keys.are_required

    @web.middleware
    async def handle_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if are_keys_required or "Authorization" in request.headers:
                authenticate(request, api_keys)
            else:
                request[CLIENT] = KEYLESS_CLIENT
            if request_metrics is not None:
                request[REQUEST_COUNTER] = request_metrics.num_received
            return await handler(request)
        except BaseException as error:
            request[FAILURE_TYPE] = type(error)
            if not isinstance(error, Exception):  # the client has left
                raise
            return render_failure(request, error, compat)
        finally:
            if request_metrics is not None and REQUEST_ID in request:
                failure_type = request.get(FAILURE_TYPE)
                counter = (request_metrics.num_succeeded if failure_type is None
                           else request_metrics.num_failed[error_label(failure_type)])
                counter.add()

    return handle_request


def render_failure(request: web.Request, error: Exception, compat: str) -> web.Response:
    """Return the response for an exception, in the format of the route's dialect."""
    if isinstance(error, Cancelled | ConnectionError):
        return abort_connection(request)
    response = error_reply_for_route(request, error, compat).to_response()
    response.headers.update(request_id_header(request))
    if isinstance(error, web.HTTPException):
        response.headers.update({name: error.headers[name] for name in COPIED_ERROR_HEADERS if name in error.headers})
    return response


def error_reply_for_route(request: web.Request, error: Exception, compat: str) -> TgiErrorReply | OpenAIErrorReply:
    if has_openai_error_format(request.path, compat):
        return openai_error_reply(request, error)
    if compat == "lorax" and not isinstance(error, web.HTTPException):
        reply = lorax_error_reply(error)
        is_invalid_embedding = isinstance(error, InvalidRequest) and request.path == "/v1/embeddings"
        return replace(reply, status=400, error_type="invalid_input") if is_invalid_embedding else reply
    if isinstance(error, AdapterNotFound) and request.path.startswith("/v1/"):  # where an adapter is named as a model
        return TgiErrorReply(404, "model_not_found", shorten_message(str(error)))
    return TgiErrorReply.from_exception(error)


def openai_error_reply(request: web.Request, error: Exception) -> OpenAIErrorReply:
    reply = OpenAIErrorReply.from_exception(error)
    if error is request.match_info.http_exception:  # no route has this path, or none with this method
        message = shorten_message(f"there is no {request.method} {request.path} here")
        if isinstance(error, web.HTTPMethodNotAllowed):
            return replace(reply, message=f"{message}, only {' and '.join(sorted(error.allowed_methods))}")
        return replace(reply, message=message, code="unknown_url")
    return reply


def abort_connection(request: web.Request) -> web.Response:
    """Abort the connection without a response; the returned one is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
