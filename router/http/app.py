"""Puts the dialects together as one aiohttp application, in which every error has the same shape.

Knows nothing of what the routes do. Serve it with `handler_cancellation=True`: a client that leaves ends its request.
"""

from aiohttp import web
from aiohttp.typedefs import Handler

from router.config import RouterConfig
from router.errors import Cancelled
from router.http.errors import Told
from router.http.tgi import Engine, Tgi
from router.validation import Validator


def create_app(engine: Engine, validator: Validator, config: RouterConfig, model: str = "") -> web.Application:
    """`model` is the name that clients see; by default what the shards call it."""
    # aiohttp refuses bodies that reach its limit, ours may be reached.
    app = web.Application(client_max_size=config.payload_limit + 1, middlewares=[tell_errors])
    app.add_routes(Tgi(engine, validator, config, model or engine.facts.model).routes())
    return app


@web.middleware
async def tell_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Cancelled, ConnectionError):
        return cut_off(request)
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size - 1
        return Told(413, "payload_too_large", f"the body must have at most {limit} bytes (--payload-limit)").response()
    except web.HTTPException as error:
        answer = Told.of(error).response()
        answer.headers.update({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        return answer
    except Exception as error:
        return Told.of(error).response()


def cut_off(request: web.Request) -> web.Response:
    """End the connection without an answer; what is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
