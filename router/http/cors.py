"""Which websites may ask from a browser: the headers by which a browser lets a page of another origin see our answers.

A browser asks beforehand, without a key, whether it may send one. Knows no route, and keeps nobody out: whoever uses no
browser never asks.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

METHODS = "GET, POST"
REMEMBERED = "600"  # seconds for which a browser need not ask again
ASKED = "Access-Control-Request-Method"


def allow_origins(app: web.Application, origins: Sequence[str]) -> None:
    """Nothing changes when there are none."""
    if not origins:
        return

    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        """Streams, errors and refused keys, too: a page shall be able to read why."""
        response.headers.update(permission(request.headers.get("Origin", ""), origins))

    app.middlewares.insert(0, answer_preflight)
    app.on_response_prepare.append(mark)


def permission(origin: str, origins: Sequence[str]) -> dict[str, str]:
    if "*" in origins:
        return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "*"}
    differs = {"Vary": "Origin"}  # what a cache keeps for one origin is not for another
    if origin not in origins:
        return differs
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"} | differs


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Any header may be sent, `Authorization` and those of client libraries among them: a key that a page does not know
    it cannot send."""
    if request.method != "OPTIONS" or ASKED not in request.headers or "Origin" not in request.headers:
        return await handler(request)
    wanted = request.headers.get("Access-Control-Request-Headers", "content-type, authorization")
    return web.Response(headers={"Access-Control-Allow-Methods": METHODS, "Access-Control-Allow-Headers": wanted,
                                 "Access-Control-Max-Age": REMEMBERED})
