"""Routes of the page for browsers: `/ui`, the files that it loads, and `/` for clients that ask for HTML.

All links of the page are relative, so that it works behind a proxy that serves weft under a prefix. Nothing of it
depends on the client: it is served without a key, and asks for one itself.
"""

import gzip
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

INDEX_FILE = "index.html"
CONTENT_TYPES = {INDEX_FILE: "text/html", "page.css": "text/css", "page.js": "text/javascript",
                 "icon.svg": "image/svg+xml", "licenses.txt": "text/plain"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
VARIED_BY = "Accept, Accept-Encoding"
REFRESH_SECONDS = 2
STARTING_PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="color-scheme" content="light dark" />
    <title>weft is starting</title>
    <link rel="icon" href="ui/icon.svg" type="image/svg+xml" />
    <link rel="stylesheet" href="ui/page.css" />
  </head>
  <body>
    <main class="starting">
      <h1>weft is starting</h1>
      <p role="status">The server is not ready yet, {progress}.</p>
      <p class="hint">This page asks again every {refresh} seconds.</p>
    </main>
  </body>
</html>
"""
STARTUP_PHASE_WORDS = {"load": "it is loading the model", "check": "it is checking the model",
                       "warm-up": "it is warming up"}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A built file of the page, plain and compressed."""

    content_type: str
    content: bytes
    compressed_content: bytes
    etag: str  # of the plain content; without quotes

    @property
    def compressed_etag(self) -> str:
        """Tag of the compressed content: other bytes may not have the tag of the plain ones (RFC 9110)."""
        return f"{self.etag}-gzip"

    @classmethod
    def from_content(cls, content_type: str, content: bytes) -> "PageFile":
        return cls(content_type, content, gzip.compress(content, mtime=0), hashlib.sha256(content).hexdigest()[:20])

    def respond_to(self, request: web.Request) -> web.Response:
        """Return the file, or 304 if the client has it."""
        is_compressed = accepts(request, "Accept-Encoding", "gzip")
        etag = self.compressed_etag if is_compressed else self.etag
        headers = {**PAGE_HEADERS, "Vary": VARIED_BY, "ETag": f'"{etag}"'}
        if any(known.value in {etag, "*"} for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        content = self.content
        if is_compressed:
            content, headers["Content-Encoding"] = self.compressed_content, "gzip"
        return web.Response(body=content, content_type=self.content_type, charset="utf-8", headers=headers)


@cache
def load_page_files() -> Mapping[str, PageFile]:
    """Return the built files by name."""
    folder = files("router.http.page") / "static"
    return {name: PageFile.from_content(content_type, (folder / name).read_bytes())
            for name, content_type in CONTENT_TYPES.items()}


class PageRoutes:
    """Handlers of `/`, `/ui` and `/ui/{file}`. Without the page (--no-ui) the last two are not found.

    `/ui/` and `/ui/index.html` lead to `/ui`: the page's relative links are right there only.
    """

    def __init__(self, probe: Handler, *, is_enabled: bool = True) -> None:
        """`probe` answers `/` for clients that do not ask for HTML."""
        self._probe = probe
        self._is_enabled = is_enabled

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.root), web.get("/ui", self.page), web.get("/ui/{file:[^/]*}", self.file)]

    async def root(self, request: web.Request) -> web.StreamResponse:
        is_browser = self._is_enabled and accepts(request, "Accept", "text/html")
        return await (self.page if is_browser else self._probe)(request)

    async def page(self, request: web.Request) -> web.StreamResponse:
        self._check_enabled()
        return load_page_files()[INDEX_FILE].respond_to(request)

    async def file(self, request: web.Request) -> web.StreamResponse:
        self._check_enabled()
        if request.match_info["file"] in {"", INDEX_FILE}:
            return web.Response(status=308, headers={"Location": "../ui"})
        page_file = load_page_files().get(request.match_info["file"])
        if page_file is None:
            raise web.HTTPNotFound(text=f"the page has no file {request.match_info['file'][:100]!a}")
        return page_file.respond_to(request)

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise web.HTTPNotFound(text="this server has no page for browsers (--no-ui)")


class StartupProgressPageRoutes(PageRoutes):
    """Handlers of the same routes while the server starts: in the place of the page, one that says how far the start is
    and asks again."""

    def __init__(self, probe: Handler, get_progress: Callable[[], Mapping[str, Any] | None], *,
                 is_enabled: bool = True) -> None:
        """`get_progress` returns the answer of `/startup`."""
        super().__init__(probe, is_enabled=is_enabled)
        self._get_progress = get_progress

    async def page(self, _: web.Request) -> web.StreamResponse:
        self._check_enabled()
        text = STARTING_PAGE.format(refresh=REFRESH_SECONDS, progress=describe_progress(self._get_progress() or {}))
        return web.Response(status=503, text=text, content_type="text/html", headers={
            **PAGE_HEADERS, "Refresh": str(REFRESH_SECONDS), "Retry-After": str(REFRESH_SECONDS),
            "Cache-Control": "no-store"})


def describe_progress(progress: Mapping[str, Any]) -> str:
    words = STARTUP_PHASE_WORDS.get(progress.get("phase", ""), "it is starting")
    if total := progress.get("total"):
        words += f", {progress['bytes'] / total:.0%} of {total / 1e9:.1f} GB"
    seconds = progress.get("eta_seconds")
    return words if seconds is None else f"{words}, about {seconds:.0f} seconds left"


def accepts(request: web.Request, header: str, name: str) -> bool:
    """Whether the client names this type or encoding among those that it accepts, and not with `q=0`.

    Browsers name text/html, and probes and curl do not.
    """
    for accepted in request.headers.get(header, "").lower().split(","):
        accepted_name, *parameters = (part.strip() for part in accepted.split(";"))
        if accepted_name == name:
            return not any(re.fullmatch(r"q\s*=\s*0(\.0*)?", parameter) for parameter in parameters)
    return False
