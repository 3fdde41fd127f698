"""Authentication by API key. A request without a valid key is rejected before anything else of it is read, unless its
route is in OPEN_TO_ALL.

The middleware stores the key's tenant in the request. Handlers that change what other clients use are wrapped in
`admins_only`.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.api_keys import Keys
from router.request import Tenant

TENANT = web.RequestKey("tenant", Tenant)
IS_ADMIN = web.RequestKey("is_admin", bool)  # whether the key may change what other clients use
TOKEN = web.RequestKey("token", str)  # the client's token for adapter sources
# For load balancers, dashboards and clients that discover the server; they reveal nothing about any tenant or request.
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
    """Wrap a handler to reject (403) keys of another role before the body is read."""
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
    """Return the bearer token if it looks like one of the Hub's and the server itself has no keys; else nothing.

    API keys of this server, and keys that clients send to any server, must not be passed on to an adapter source.
    """
    sent = bearer(request)
    return sent if sent.startswith(TOKENS_OF_HUB) and not keys.are_asked_for else ""


def bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
