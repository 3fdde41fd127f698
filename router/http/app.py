"""The aiohttp application: all routes and middlewares. Every error is sent in the format of its route's dialect.

`create_door` makes the application that answers probes while the main one is not ready or shuts down. Serve both with
`handler_cancellation=True`, so that a request is cancelled when its client disconnects.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.api_keys import Keys
from router.config import RouterConfig
from router.errors import AdapterMissing, Cancelled, InvalidRequest, NotReady
from router.http.docs.page import Docs
from router.http.lorax import rendering
from router.http.lorax.openai_routes import LoraxV1
from router.http.lorax.routes import Lorax
from router.http.openai.chat import OpenAi
from router.http.openai.completions import Completions
from router.http.openai.errors import ApiError, has_api_errors
from router.http.routes.adapters import AdapterRoutes
from router.http.routes.batching_study import Inference
from router.http.routes.classify import Classify
from router.http.routes.clouds import Clouds
from router.http.routes.embeddings import Embeddings
from router.http.routes.explain import Requests
from router.http.routes.info import Facts
from router.http.routes.probes import Probes
from router.http.routes.tokenize import Tokens
from router.http.tgi.routes import Tgi
from router.http.transport.auth import check_keys
from router.http.transport.content_encoding import TooLargeDecompressed
from router.http.transport.cors import allow_origins
from router.http.transport.errors import Told, shortened
from router.http.transport.generate import About, Engine, House
from router.http.transport.headers import identity
from router.http.transport.metrics import FAILURE, Metrics, count_requests
from router.http.transport.sse import Outbox
from router.http.transport.tracing import trace_requests
from router.telemetry.spans import Spans
from router.validation.validator import Validator
from shard.telemetry.traces import Sender

KEPT_HEADERS = ("Allow", "WWW-Authenticate")


def create_app(engine: Engine, validator: Validator, config: RouterConfig, keys: Keys,
               about: About, *, sender: Sender | None = None) -> web.Application:
    """Create the application. An empty `about.name` is replaced by the shards' name of the model; spans are sent only
    with a `sender`."""
    about = About(about.name or engine.facts.model, about.notice)
    tracing = [] if sender is None else [trace_requests(Spans(sender, about.name))]
    # aiohttp rejects bodies of exactly its limit; --payload-limit is inclusive.
    app = web.Application(client_max_size=config.payload_limit + 1, middlewares=[
        *tracing, telling(config.compat), check_keys(keys),
        count_requests(engine.tally.requests)])
    house = House(engine, validator, config, about, Outbox())
    app.add_routes(first_of_each([
        *dialects(house), *Embeddings(house).routes(), *Classify(house).routes(), *Tokens(house).routes(),
        *Facts(house).routes(), *AdapterRoutes(house).routes(), *Docs(config.compat, config.dialect).routes(),
        *Metrics(engine, takes_json=house.is_lorax).routes(), *Requests(engine).routes(),
        *Probes(engine.ailment, lambda: None).routes()]))
    allow_origins(app, config.cors_allow_origin)
    return app


def dialects(house: House) -> list[web.RouteDef]:
    """Return the routes of the enabled dialects. A route of several belongs to the first (see `first_of_each`)."""
    tgi, chats, completions = Tgi(house), OpenAi(house), Completions(house)
    study = Inference(house).routes() if house.config.dialect == "batching" else []
    routes = [*study, *tgi.routes(), *chats.routes(), *completions.routes()]
    if not house.is_lorax:
        return [*routes, *Clouds(house, tgi.compat, chats.chat, completions.complete).routes()]
    lorax, v1 = Lorax(house), LoraxV1(house)
    return [*lorax.routes(), *v1.routes(), *routes, *Clouds(house, lorax.compat, v1.chat, v1.complete).routes()]


def first_of_each(routes: Iterable[web.RouteDef]) -> list[web.RouteDef]:
    found: dict[tuple[str, str], web.RouteDef] = {}
    for route in routes:
        found.setdefault((route.method, route.path), route)
    return [*found.values()]


def create_door(probes: Probes, keys: Keys, also: Iterable[web.RouteDef] = (), *, compat: str = "none"
                ) -> web.Application:
    """Create an application that answers probes and the routes in `also`, and rejects all others with 503."""
    async def later(_: web.Request) -> NoReturn:
        raise NotReady(probes.ailment() or "it is about to be")

    door = web.Application(middlewares=[telling(compat), check_keys(keys)])
    door.add_routes([*probes.routes(), *also, web.route("*", "/{path:.*}", later)])
    return door


def telling(compat: str) -> Middleware:
    """Return a middleware that turns exceptions into error responses in the format of the route's dialect."""
    @web.middleware
    async def tell_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (Cancelled, ConnectionError) as error:
            request[FAILURE] = type(error)
            return cut_off(request)
        except Exception as error:
            request[FAILURE] = type(error)
            answer = error_of(request, error, compat).response()
            answer.headers.update(identity(request))
            if isinstance(error, web.HTTPException):
                answer.headers.update({name: error.headers[name] for name in KEPT_HEADERS if name in error.headers})
            return answer

    return tell_errors


def error_of(request: web.Request, error: Exception, compat: str) -> Told | ApiError:
    if has_api_errors(request.path, compat):
        return api_error(request, error)
    return lorax_told(request, error) if compat == "lorax" else told(request, error)


def api_error(request: web.Request, error: Exception) -> ApiError:
    found = ApiError.of(error)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return replace(found, message=too_large(request, error))
    if error is request.match_info.http_exception:  # no route has this path, or none with this method
        asked = shortened(f"there is no {request.method} {request.path} here")
        if isinstance(error, web.HTTPMethodNotAllowed):
            return replace(found, message=f"{asked}, only {' and '.join(sorted(error.allowed_methods))}")
        return replace(found, message=asked, code="unknown_url")
    return found


def told(request: web.Request, error: Exception) -> Told:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Told(413, "payload_too_large", too_large(request, error))
    if isinstance(error, AdapterMissing) and request.path.startswith("/v1/"):  # where an adapter is named as a model
        return Told(404, "model_not_found", shortened(str(error)))
    return Told.of(error)


def lorax_told(request: web.Request, error: Exception) -> Told:
    if isinstance(error, web.HTTPException):
        return told(request, error)
    found = rendering.told(error)
    if isinstance(error, InvalidRequest) and request.path == "/v1/embeddings":
        return replace(found, status=400, error_type="invalid_input")
    return found


def too_large(request: web.Request, error: Exception) -> str:
    once = " once decompressed" if isinstance(error, TooLargeDecompressed) else ""
    return f"the body must have at most {request.client_max_size - 1} bytes{once} (--payload-limit)"


def cut_off(request: web.Request) -> web.Response:
    """Abort the connection without a response; the returned one is never sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
