"""CORS: headers that let a browser show the server's responses to pages of other origins.

Browsers send preflight requests without a key, so these are answered before keys are checked. CORS is no access
control: only browsers respect it.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

ALLOWED_METHODS = "GET, POST"
PREFLIGHT_MAX_AGE = "600"  # seconds for which a browser may cache a preflight response
REQUESTED_METHOD_HEADER = "Access-Control-Request-Method"


def allow_cors_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Allow these origins to read the responses of `app`; without origins, change nothing."""
    if not origins:
        return

    async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers to streams and errors, too, so that a page can read why a request was rejected."""
        response.headers.update(cors_headers(request.headers.get("Origin", ""), origins))

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(add_cors_headers)


def cors_headers(origin: str, origins: Sequence[str]) -> dict[str, str]:
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    vary_header = {"Vary": "Origin"}  # a cached response is valid for one origin only
    if origin not in origins:
        return vary_header
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"} | vary_header


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
