"""Authentication by API key. A request without a valid key is rejected before anything else of it is read, unless its
route is in PUBLIC_PATHS. The application's middleware stores the client in the request. Handlers that change what other
clients use are wrapped in `require_admin`."""

from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from router.api_keys import ApiKeys
from router.request import DEFAULT_TENANT, Tenant

# For load balancers, dashboards and clients that discover the server; they reveal nothing about any tenant or request.
PUBLIC_PATHS = frozenset({
    "/", "/api-doc/openapi.json", "/api/ps", "/api/tags", "/api/version", "/docs", "/health", "/info",
    "/live", "/metrics", "/ping", "/ready", "/startup", "/v1/models"})
MODEL_PATH_PREFIX = "/v1/models/"  # of routes that reveal no more than the list does
ANTHROPIC_KEY_HEADER = "x-api-key"
ANTHROPIC_PATH_PREFIX = "/v1/messages"  # of routes whose clients know that header
HUB_TOKEN_PREFIXES = ("hf_", "api_")
READ_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """The client of a request, by its API key."""

    tenant: Tenant
    is_admin: bool = False  # whether it may change what other clients use
    source_token: str = field(default="", repr=False)  # its token for adapter sources


CLIENT = web.RequestKey("client", AuthenticatedClient)  # may be absent on public paths
KEYLESS_CLIENT = AuthenticatedClient(DEFAULT_TENANT, is_admin=True)  # of a server without keys


def authenticate(request: web.Request, api_keys: ApiKeys) -> None:
    """Store the client in the request, unless its path is public. Raises the HTTP error 401.

    The bearer token is the client's token for adapter sources if it looks like one of the Hub's and the server itself
    has no keys: API keys, of this server or any other, must not be passed on to an adapter source.
    """
    if request.method in READ_METHODS and (request.path in PUBLIC_PATHS or request.path.startswith(MODEL_PATH_PREFIX)):
        return
    key = get_request_key(request)
    tenant = api_keys.find_tenant(key)
    if tenant is None:
        other_header = f" or `{ANTHROPIC_KEY_HEADER}: KEY`" if request.path.startswith(ANTHROPIC_PATH_PREFIX) else ""
        raise web.HTTPUnauthorized(text=f"a key is needed, sent as `Authorization: Bearer KEY`{other_header}",
                                   headers={"WWW-Authenticate": "Bearer"})
    source_token = key if key.startswith(HUB_TOKEN_PREFIXES) and not api_keys.are_required else ""
    request[CLIENT] = AuthenticatedClient(tenant, api_keys.is_admin(key), source_token)


def get_request_key(request: web.Request) -> str:
    """Return the bearer token, or else the key as Anthropic's clients send it; empty without any."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get(ANTHROPIC_KEY_HEADER, "").strip()


def require_admin(handler: Handler) -> Handler:
    """Wrap a handler to reject (403) keys of another role before the body is read."""
    async def handle_if_admin(request: web.Request) -> web.StreamResponse:
        if not request[CLIENT].is_admin:
            raise web.HTTPForbidden(text=f"{request.method} {request.path} needs an admin key: one with the role admin "
                                    "in the file of --api-keys, or the one of --api-key")
        return await handler(request)

    return handle_if_admin
