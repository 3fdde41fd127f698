"""Authentication by API key. A request without a valid key is rejected before anything else of it is read, unless its
route is in PUBLIC_PATHS, and so is one for another host. The application's middleware stores the client in the request.
Handlers that change what other clients use are wrapped in `require_admin`."""

import re
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.request import DEFAULT_TENANT, Tenant

# For load balancers, dashboards and clients that discover the server; they reveal nothing about any tenant or request.
PUBLIC_PATHS = frozenset({
    "/", "/api-doc/openapi.json", "/api/ps", "/api/tags", "/api/version", "/docs", "/docs/try-it.js", "/health",
    "/info", "/live", "/metrics", "/openapi.json", "/ping", "/ready", "/startup", "/ui", "/v1/models"})
PUBLIC_PATH_PREFIXES = ("/v1/models/", "/ui/")  # single models, which the list has as well; files of the page
MODELS_PATH = "/v1/models"  # public, but a wrong key is rejected: many clients list the models to try their key
ANTHROPIC_KEY_HEADER = "x-api-key"
PORT_PATTERN, ADDRESS_PATTERN = re.compile(r":\d+$"), re.compile(r"[\d.]+|\[[\da-f:.]+\]")
LOCAL_SUFFIXES = (".localhost", ".local", ".internal")  # of names that lead to no website
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
    is_public = request.path in PUBLIC_PATHS or request.path.startswith(PUBLIC_PATH_PREFIXES)
    key = get_request_api_key(request)
    is_key_tried = bool(key) and request.path.startswith(MODELS_PATH)
    if is_public and request.method in READ_METHODS and not is_key_tried:
        return
    tenant = api_keys.find_tenant(key)
    if tenant is None:
        other_header = f" or `{ANTHROPIC_KEY_HEADER}: KEY`" if request.path.startswith(ANTHROPIC_PATH_PREFIX) else ""
        need = "the key is not one of this server's; one is" if key else "a key is"
        raise web.HTTPUnauthorized(text=f"{need} needed, sent as `Authorization: Bearer KEY`{other_header}",
                                   headers={"WWW-Authenticate": "Bearer"})
    source_token = key if key.startswith(HUB_TOKEN_PREFIXES) and not api_keys.are_required else ""
    request[CLIENT] = AuthenticatedClient(tenant, api_keys.is_admin(key), source_token)


def find_allowed_hosts(config: RouterConfig) -> frozenset[str] | None:
    """Return the domain names by which clients may address the server; None if any will do.

    By default a server on a loopback address without keys takes none: a website can let its name lead to 127.0.0.1, and
    the browsers of its visitors would then let it use the server (DNS rebinding). Addresses, and names without a dot,
    cannot be taken so, and are always allowed.
    """
    if config.allowed_hosts:
        return None if "*" in config.allowed_hosts else frozenset(name.lower() for name in config.allowed_hosts)
    is_loopback = config.hostname in {"localhost", "::1"} or config.hostname.startswith("127.")
    return frozenset() if is_loopback and not (config.api_key or config.api_keys) else None


def check_host(request: web.Request, allowed_hosts: frozenset[str]) -> None:
    """Raise the HTTP error 403 if the request addresses the server by a domain name that is not allowed."""
    host = request.headers.get("Host", "")
    name = PORT_PATTERN.sub("", host).lower().removesuffix(".")
    if "." in name and not ADDRESS_PATTERN.fullmatch(name) and not name.endswith(LOCAL_SUFFIXES) \
            and name not in allowed_hosts:
        raise web.HTTPForbidden(text=f"requests must address this server by its address or localhost, got `Host` "
                                f"{host[:100]!a}; --allowed-hosts allows other names")


def get_request_api_key(request: web.Request) -> str:
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
