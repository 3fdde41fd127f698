"""Routes of the page for browsers: `/ui`, the files that it loads, and `/` for clients that ask for HTML.

All links of the page are relative, so that it works behind a proxy that serves weft under a prefix. Nothing of it
depends on the client: it is served without a key, and asks for one itself.
"""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler

CONTENT_TYPES = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript",
                 "icon.svg": "image/svg+xml", "licenses.txt": "text/plain"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
VARIED_BY = "Accept, Accept-Encoding"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A built file of the page, plain and compressed."""

    content_type: str
    content: bytes
    compressed_content: bytes
    etag: str  # of the plain content; without quotes

    @classmethod
    def from_content(cls, content_type: str, content: bytes) -> "PageFile":
        return cls(content_type, content, gzip.compress(content, mtime=0), hashlib.sha256(content).hexdigest()[:20])

    def respond_to(self, request: web.Request) -> web.Response:
        """Return the file, or 304 if the client has it."""
        headers = {**PAGE_HEADERS, "Vary": VARIED_BY, "ETag": f'"{self.etag}"'}
        if any(etag.value in {self.etag, "*"} for etag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            content, headers["Content-Encoding"] = self.compressed_content, "gzip"
        return web.Response(body=content, content_type=self.content_type, charset="utf-8", headers=headers)


@cache
def load_page_files() -> Mapping[str, PageFile]:
    """Return the built files by name."""
    folder = files("router.http.page") / "static"
    return {name: PageFile.from_content(content_type, (folder / name).read_bytes())
            for name, content_type in CONTENT_TYPES.items()}


class PageRoutes:
    """Handlers of `/`, `/ui` and `/ui/{file}`. Without the page (--no-ui) the last two are not found."""

    def __init__(self, probe: Handler, *, is_enabled: bool = True) -> None:
        """`probe` answers `/` for clients that do not ask for HTML."""
        self._probe = probe
        self._is_enabled = is_enabled

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.root), web.get("/ui", self.page), web.get("/ui/{file}", self.file)]

    async def root(self, request: web.Request) -> web.StreamResponse:
        return await (self.page if self._is_enabled and accepts_html(request) else self._probe)(request)

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._check_enabled()
        return load_page_files()["index.html"].respond_to(request)

    async def file(self, request: web.Request) -> web.StreamResponse:
        self._check_enabled()
        page_file = load_page_files().get(request.match_info["file"])
        if page_file is None:
            raise web.HTTPNotFound(text=f"the page has no file {request.match_info['file'][:100]!a}")
        return page_file.respond_to(request)

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise web.HTTPNotFound(text="this server has no page for browsers (--no-ui)")


def accepts_html(request: web.Request) -> bool:
    """Whether the client names HTML among the types that it accepts, as browsers do and probes and curl do not."""
    accepted_types = request.headers.get("Accept", "").lower().split(",")
    return any(kind.partition(";")[0].strip() == "text/html" for kind in accepted_types)
