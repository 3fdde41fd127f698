"""Authentication by API key. A request without a valid key is rejected before anything else of it is read, unless its
route is in PUBLIC_PATHS.

The middleware stores the key's tenant in the request. Handlers that change what other clients use are wrapped in
`require_admin`.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.api_keys import ApiKeys
from router.request import Tenant

TENANT = web.RequestKey("tenant", Tenant)
IS_ADMIN = web.RequestKey("is_admin", bool)  # whether the key may change what other clients use
SOURCE_TOKEN = web.RequestKey("token", str)  # the client's token for adapter sources
# For load balancers, dashboards and clients that discover the server; they reveal nothing about any tenant or request.
PUBLIC_PATHS = frozenset({
    "/", "/api-doc/openapi.json", "/docs", "/health", "/info", "/live", "/metrics", "/ping", "/ready", "/startup",
    "/v1/models"})
HUB_TOKEN_PREFIXES = ("hf_", "api_")
READ_METHODS = frozenset({"GET", "HEAD"})


def create_auth_middleware(api_keys: ApiKeys) -> Middleware:
    @web.middleware
    async def authenticate_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in READ_METHODS or request.path not in PUBLIC_PATHS:
            request[TENANT] = authenticate(request, api_keys)
            request[IS_ADMIN] = api_keys.is_admin(get_bearer_token(request))
            request[SOURCE_TOKEN] = get_adapter_source_token(request, api_keys)
        return await handler(request)

    return authenticate_request


def require_admin(handler: Handler) -> Handler:
    """Wrap a handler to reject (403) keys of another role before the body is read."""
    async def handle_if_admin(request: web.Request) -> web.StreamResponse:
        if not request[IS_ADMIN]:
            raise web.HTTPForbidden(text=f"{request.method} {request.path} needs an admin key: one with the role admin "
                                    "in the file of --api-keys, or the one of --api-key")
        return await handler(request)

    return handle_if_admin


def authenticate(request: web.Request, api_keys: ApiKeys) -> Tenant:
    tenant = api_keys.find_tenant(get_bearer_token(request))
    if tenant is None:
        raise web.HTTPUnauthorized(
            text="a key is needed, sent as `Authorization: Bearer KEY`", headers={"WWW-Authenticate": "Bearer"})
    return tenant


def get_adapter_source_token(request: web.Request, api_keys: ApiKeys) -> str:
    """Return the bearer token if it looks like one of the Hub's and the server itself has no keys; else nothing.

    API keys of this server, and keys that clients send to any server, must not be passed on to an adapter source.
    """
    token = get_bearer_token(request)
    return token if token.startswith(HUB_TOKEN_PREFIXES) and not api_keys.are_required else ""


def get_bearer_token(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
