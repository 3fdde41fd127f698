"""HTTP client of the Hub: the files of a model, their metadata, and their bytes from an offset on.

Each method sends one request and never retries; launcher/hub/retry_policy.py decides about retries.
"""

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIMEOUT = 10.0  # seconds without data
PIECE = 256 * 1024  # maximum bytes per read
LONGEST_LISTING = 2**25  # bytes
COMMIT = re.compile(r"[0-9a-f]{40}")
POOLING = "1_Pooling/config.json"  # the pooling of an embedding model
ETAG = re.compile(r"(?!\.)[\w.-]{1,128}", re.ASCII)  # used as a file name
AGAIN = {408, 425, 429, 500, 502, 503, 504}  # statuses worth a retry
WORDS = {401: "refuses the token", 403: "forbids it", 429: "asks for fewer requests"}


class Unreachable(Exception):
    """The Hub does not answer, or not now. `heard`: a response came; `seconds`: the wait that it asked for."""

    def __init__(self, message: str, *, heard: bool = False, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.heard, self.seconds = heard, seconds


class NoSuchModel(ValueError):
    """There is no such model, or the Hub does not show it with this token."""


class NoSuchRevision(ValueError):
    """The model exists, but not this revision."""


class Gated(ValueError):
    """The model exists, but access must be requested, and the token has none."""


class TokenRefused(ValueError):
    """The Hub rejects the token."""


@dataclass(frozen=True, slots=True)
class Listing:
    commit: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str
    etag: str  # the SHA-256 of a large file, the git blob hash of a small one
    size: int


class Redirects(HTTPRedirectHandler):
    """Redirect handler that never sends the token to another host.

    A HEAD request is not redirected to another host either: the Hub's own response already has the metadata.
    """

    # The signature is that of the library.
    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message,  # noqa: ARG002, PLR0917
                         newurl: str) -> Request | None:
        same = origin(newurl) == origin(req.full_url)
        if req.get_method() == "HEAD" and not same:
            return None
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise HTTPError(newurl, code, "leads from https to http", headers, fp)
        left = {"host"} if same else {"host", "authorization"}
        kept = {name: value for name, value in req.header_items() if name.lower() not in left}
        return Request(newurl, headers=kept, method=req.get_method())


def origin(url: str) -> tuple[str, str]:
    return urlsplit(url).scheme, urlsplit(url).netloc


class Hub:
    """One model at the Hub."""

    def __init__(self, endpoint: str, name: str, token: str, client: str) -> None:
        """Prepare the headers; `client` is the User-Agent."""
        self.endpoint, self.name = endpoint, name
        self._token = token
        self._headers = {"User-Agent": client} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._opener = build_opener(Redirects)

    def listing(self, revision: str) -> Listing:
        with self._asked(f"/api/models/{self.name}/revision/{quote(revision, safe='')}", revision) as answer:
            return read_listing(answer.read(LONGEST_LISTING), self.endpoint)

    def file(self, name: str, commit: str) -> RemoteFile:
        with self._asked(self._path(name, commit), commit, "HEAD") as answer:
            etag, size = (answer.headers.get(f"X-Linked-{word}") for word in ("ETag", "Size"))
            etag = (etag or answer.headers.get("ETag") or "").removeprefix("W/").strip('"')
            size = size or answer.headers.get("Content-Length") or ""
        if not ETAG.fullmatch(etag) or not size.isascii() or not size.isdigit():
            raise Unreachable(f"{self.endpoint} does not say what {name} is: ETag {etag!r}, size {size!r}", heard=True)
        return RemoteFile(name, etag, int(size))

    def read(self, file: RemoteFile, commit: str, start: int) -> Generator[tuple[int, bytes]]:
        """Yield offset and bytes of each piece, from `start` on, or from 0 if the Hub ignores the range."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._asked(self._path(file.name, commit), commit, **headers) as answer:
            place = start if answer.status == 206 else 0
            while piece := answer.read1(PIECE):
                yield place, piece
                place += len(piece)

    def _path(self, name: str, commit: str) -> str:
        return f"/{self.name}/resolve/{quote(commit, safe='')}/{quote(name)}"

    @contextmanager
    def _asked(self, path: str, revision: str, method: str = "GET", **headers: str) -> Iterator[HTTPResponse]:
        """Send a request and yield the response. Any failure, also while it is read, is Unreachable or ValueError."""
        request = Request(self.endpoint + path, headers=self._headers | headers, method=method)
        try:
            with self._open(request, revision) as answer:
                yield answer
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise Unreachable(f"cannot reach the Hub at {self.endpoint}: {why}") from error

    def _open(self, request: Request, revision: str) -> Any:
        try:
            return self._opener.open(request, timeout=TIMEOUT)
        except HTTPError as answer:
            if request.get_method() == "HEAD" and 300 <= answer.code < 400:
                return answer
            with answer:
                raise self._refusal(answer, revision) from None

    def _refusal(self, answer: HTTPError, revision: str) -> Exception:
        """Return the exception for an error status, with advice in its message."""
        page, kind = f"{self.endpoint}/{self.name}", answer.headers.get("X-Error-Code", "")
        if answer.code in AGAIN:
            words = f"{answer.code} {WORDS.get(answer.code, answer.reason)}"
            return Unreachable(f"the Hub at {self.endpoint} answers {words}", heard=True, seconds=pause_of(answer))
        if kind == "GatedRepo":
            return Gated(f"{self.name} is gated: ask for access at {page}, " + (
                "the account of the token that is set does not have it" if self._token else
                "and set HF_TOKEN to a token of your account"))
        if kind == "RevisionNotFound":
            return NoSuchRevision(f"{self.name} has no revision {revision} (--revision: a branch, a tag or a commit)")
        if self._token and answer.code in {401, 403} and kind != "RepoNotFound":
            return TokenRefused(f"the Hub at {self.endpoint} {WORDS[answer.code]} ({answer.code}): set HF_TOKEN to a "
                                f"token that may read {self.name}, or to nothing for a model that is public")
        if kind in {"RepoNotFound", ""} and answer.code in {401, 403, 404}:
            return NoSuchModel(f"there is no model {self.name} at {self.endpoint}, or it is private: check the name, "
                               "and for a private one set HF_TOKEN to a token that may read it")
        return ValueError(f"the Hub at {self.endpoint} answers {answer.code} {answer.reason}: "
                          f"{kind or 'it gives no cause'}")


def read_listing(text: bytes, endpoint: str) -> Listing:
    """Parse a listing. Only names without a folder, which are safe as paths, and POOLING are kept."""
    try:
        told = json.loads(text)
        commit, names = told["sha"], tuple(file["rfilename"] for file in told["siblings"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Unreachable(f"{endpoint} answers with something else than a model of the Hub; see HF_ENDPOINT") from error
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise Unreachable(f"{endpoint} names a commit that is none: {commit!r}")
    return Listing(commit, tuple(name for name in names if isinstance(name, str) and (
        name == POOLING or ETAG.fullmatch(name))))


def pause_of(answer: HTTPError) -> float:
    """Return the seconds of the Retry-After header, or 0."""
    told = answer.headers.get("Retry-After", "")
    return float(told) if told.isascii() and told.isdigit() else 0.0
