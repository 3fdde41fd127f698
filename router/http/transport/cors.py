"""CORS: headers that let a browser show the server's responses to pages of other origins.

Browsers send preflight requests without a key, so these are answered before keys are checked. CORS is no access
control: only browsers respect it.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

METHODS = "GET, POST"
REMEMBERED = "600"  # seconds for which a browser may cache a preflight response
ASKED = "Access-Control-Request-Method"


def allow_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Allow these origins to read the responses of `app`; without origins, change nothing."""
    if not origins:
        return

    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers to streams and errors, too, so that a page can read why a request was rejected."""
        response.headers.update(permission(request.headers.get("Origin", ""), origins))

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(mark)


def permission(origin: str, origins: Sequence[str]) -> dict[str, str]:
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    differs = {"Vary": "Origin"}  # a cached response is valid for one origin only
    if origin not in origins:
        return differs
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"} | differs


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer preflight requests and pass on all others. Any header is allowed, `Authorization` and those of client
    libraries included: a page can only send a key that it knows."""
    if request.method != "OPTIONS" or ASKED not in request.headers or "Origin" not in request.headers:
        return await handler(request)
    wanted = request.headers.get("Access-Control-Request-Headers", "content-type, authorization")
    return web.Response(headers={"Access-Control-Allow-Methods": METHODS, "Access-Control-Allow-Headers": wanted,
                                 "Access-Control-Max-Age": REMEMBERED})
