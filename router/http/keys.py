"""Who may come in: a request without a key of ours is answered before anything else is looked at.

Routes find the tenant of the key in the request; those that change what others use are wrapped in `admins_only`. Knows
nothing of where keys come from.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.request import Tenant
from router.tenants import Keys

TENANT = web.RequestKey("tenant", Tenant)
IS_ADMIN = web.RequestKey("is_admin", bool)  # whether its key may change what others use
TOKEN = web.RequestKey("token", str)  # of the client, for where adapters come from
# Asked by load balancers, dashboards and clients that look around; they tell of the server, and nothing of anybody.
OPEN_TO_ALL = frozenset({
    "/", "/api-doc/openapi.json", "/docs", "/health", "/info", "/live", "/metrics", "/ping", "/ready", "/startup",
    "/v1/models"})
TOKENS_OF_HUB = ("hf_", "api_")
READING = frozenset({"GET", "HEAD"})


def check_keys(keys: Keys) -> Middleware:
    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in READING or request.path not in OPEN_TO_ALL:
            request[TENANT] = admitted(request, keys)
            request[IS_ADMIN] = keys.is_admin(bearer(request))
            request[TOKEN] = token_for_hub(request, keys)
        return await handler(request)

    return check_key


def admins_only(handler: Handler) -> Handler:
    """Refuse requests by keys of another role, before anything of their bodies is read."""
    async def checked(request: web.Request) -> web.StreamResponse:
        if not request[IS_ADMIN]:
            raise web.HTTPForbidden(text=f"{request.method} {request.path} needs an admin key: one with the role admin "
                                         "in the file of --api-keys, or the one of --api-key")
        return await handler(request)

    return checked


def admitted(request: web.Request, keys: Keys) -> Tenant:
    tenant = keys.tenant_of(bearer(request))
    if tenant is None:
        raise web.HTTPUnauthorized(
            text="a key is needed, sent as `Authorization: Bearer KEY`", headers={"WWW-Authenticate": "Bearer"})
    return tenant


def token_for_hub(request: web.Request, keys: Keys) -> str:
    """What was sent, if it is one of the Hub's by its look: keys of ours, and of others that clients may send to any
    server, must not travel further."""
    sent = bearer(request)
    return sent if sent.startswith(TOKENS_OF_HUB) and not keys.are_asked_for else ""


def bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
