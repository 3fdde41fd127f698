"""Who may come in: a request without a key of ours is answered before anything else is looked at.

Knows nothing of where keys come from. Routes find the tenant of the key in the request.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.request import Tenant
from router.tenants import Keys

TENANT = web.RequestKey("tenant", Tenant)
TOKEN = web.RequestKey("token", str)  # of the client, for where adapters come from
# Asked by load balancers, dashboards and clients that look around; they tell of the server, and nothing of anybody.
OPEN_TO_ALL = frozenset({
    "/", "/api-doc/openapi.json", "/docs", "/health", "/info", "/live", "/metrics", "/ping", "/ready", "/startup",
    "/v1/models"})
READING = frozenset({"GET", "HEAD"})


def check_keys(keys: Keys) -> Middleware:
    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in READING or request.path not in OPEN_TO_ALL:
            request[TENANT] = admitted(request, keys)
            # Where keys are asked for, what was sent is one of ours, and none of them may travel further.
            request[TOKEN] = "" if keys.are_asked_for else bearer(request)
        return await handler(request)

    return check_key


def admitted(request: web.Request, keys: Keys) -> Tenant:
    tenant = keys.tenant_of(bearer(request))
    if tenant is None:
        raise web.HTTPUnauthorized(
            text="a key is needed, sent as `Authorization: Bearer KEY`", headers={"WWW-Authenticate": "Bearer"})
    return tenant


def bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
