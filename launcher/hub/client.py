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

TIMEOUT_SECONDS = 10.0  # seconds without data
CHUNK_BYTES = 256 * 1024  # maximum bytes per read
MAX_LISTING_BYTES = 2**25  # bytes
COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")
POOLING_CONFIG_FILE = "1_Pooling/config.json"  # the pooling of an embedding model
ETAG_PATTERN = re.compile(r"(?!\.)[\w.-]{1,128}", re.ASCII)  # used as a file name
RETRYABLE_STATUSES = {408, 425, 429, 500, 502, 503, 504}  # statuses worth a retry
STATUS_TEXTS = {401: "refuses the token", 403: "forbids it", 429: "asks for fewer requests"}


class ServerUnreachableError(Exception):
    """The Hub does not answer, or not now. `has_response`: a response came; `retry_after_seconds`: the wait that it
    asked for."""

    def __init__(self, message: str, *, has_response: bool = False, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.has_response, self.retry_after_seconds = has_response, retry_after_seconds


class RepositoryNotFoundError(ValueError):
    """There is no such model, or the Hub does not show it with this token."""


class RevisionNotFoundError(ValueError):
    """The model exists, but not this revision."""


class GatedRepositoryError(ValueError):
    """The model exists, but access must be requested, and the token has none."""


class TokenRejectedError(ValueError):
    """The Hub rejects the token."""


@dataclass(frozen=True, slots=True)
class RepositoryListing:
    """Commit of a revision, and the names of its files."""

    commit: str
    file_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Name, ETag and size of a file at the Hub."""

    name: str
    etag: str  # the SHA-256 of a large file, the git blob hash of a small one
    num_bytes: int


class TokenSafeRedirectHandler(HTTPRedirectHandler):
    """Redirect handler that never sends the token to another host.

    A HEAD request is not redirected to another host either: the Hub's own response already has the metadata.
    """

    # The signature is that of the library.
    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message,  # noqa: ARG002, PLR0917
                         newurl: str) -> Request | None:
        is_same_origin = get_url_origin(newurl) == get_url_origin(req.full_url)
        if req.get_method() == "HEAD" and not is_same_origin:
            return None
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise HTTPError(newurl, code, "leads from https to http", headers, fp)
        dropped_headers = {"host"} if is_same_origin else {"host", "authorization"}
        headers_to_send = {name: value for name, value in req.header_items() if name.lower() not in dropped_headers}
        return Request(newurl, headers=headers_to_send, method=req.get_method())


def get_url_origin(url: str) -> tuple[str, str]:
    return urlsplit(url).scheme, urlsplit(url).netloc


class HubClient:
    """HTTP client for one repository at the Hub."""

    def __init__(self, endpoint: str, repository_name: str, token: str, user_agent: str) -> None:
        """Prepare the headers; `user_agent` is the User-Agent."""
        self.endpoint, self.repository_name = endpoint, repository_name
        self._token = token
        self._headers = {"User-Agent": user_agent} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._opener = build_opener(TokenSafeRedirectHandler)

    def fetch_listing(self, revision: str) -> RepositoryListing:
        with self._send_request(f"/api/models/{self.repository_name}/revision/{quote(revision, safe='')}",
                                revision) as response:
            return parse_listing(response.read(MAX_LISTING_BYTES), self.endpoint)

    def fetch_file_metadata(self, file_name: str, commit: str) -> RemoteFile:
        with self._send_request(self._file_url_path(file_name, commit), commit, "HEAD") as response:
            etag, size = (response.headers.get(f"X-Linked-{word}") for word in ("ETag", "Size"))
            etag = (etag or response.headers.get("ETag") or "").removeprefix("W/").strip('"')
            size = size or response.headers.get("Content-Length") or ""
        if not ETAG_PATTERN.fullmatch(etag) or not size.isascii() or not size.isdigit():
            raise ServerUnreachableError(
                f"{self.endpoint} does not say what {file_name} is: ETag {etag!r}, size {size!r}", has_response=True)
        return RemoteFile(file_name, etag, int(size))

    def read_chunks(self, file: RemoteFile, commit: str, start_offset: int) -> Generator[tuple[int, bytes]]:
        """Yield offset and bytes of each piece, from `start_offset` on, or from 0 if the Hub ignores the range."""
        headers = {"Range": f"bytes={start_offset}-"} if start_offset else {}
        with self._send_request(self._file_url_path(file.name, commit), commit, **headers) as response:
            offset = start_offset if response.status == 206 else 0
            while chunk := response.read1(CHUNK_BYTES):
                yield offset, chunk
                offset += len(chunk)

    def _file_url_path(self, file_name: str, commit: str) -> str:
        return f"/{self.repository_name}/resolve/{quote(commit, safe='')}/{quote(file_name)}"

    @contextmanager
    def _send_request(self, url_path: str, revision: str, method: str = "GET",
                      **headers: str) -> Iterator[HTTPResponse]:
        """Send a request and yield the response. Any failure, also while it is read, is
        ServerUnreachableError or ValueError."""
        request = Request(self.endpoint + url_path, headers=self._headers | headers, method=method)
        try:
            with self._open_request(request, revision) as response:
                yield response
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServerUnreachableError(f"cannot reach the Hub at {self.endpoint}: {reason}") from error

    def _open_request(self, request: Request, revision: str) -> Any:
        try:
            return self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except HTTPError as answer:
            if request.get_method() == "HEAD" and 300 <= answer.code < 400:
                return answer
            with answer:
                raise self._make_status_error(answer, revision) from None

    def _make_status_error(self, response: HTTPError, revision: str) -> Exception:
        """Return the exception for an error status, with advice in its message."""
        model_url, error_code = f"{self.endpoint}/{self.repository_name}", response.headers.get("X-Error-Code", "")
        if response.code in RETRYABLE_STATUSES:
            status_text = f"{response.code} {STATUS_TEXTS.get(response.code, response.reason)}"
            return ServerUnreachableError(f"the Hub at {self.endpoint} answers {status_text}", has_response=True,
                                          retry_after_seconds=parse_retry_after(response))
        if error_code == "GatedRepo":
            return GatedRepositoryError(f"{self.repository_name} is gated: ask for access at {model_url}, " + (
                "the account of the token that is set does not have it" if self._token else
                "and set HF_TOKEN to a token of your account"))
        if error_code == "RevisionNotFound":
            return RevisionNotFoundError(
                f"{self.repository_name} has no revision {revision} (--revision: a branch, a tag or a commit)")
        if self._token and response.code in {401, 403} and error_code != "RepoNotFound":
            return TokenRejectedError(
                f"the Hub at {self.endpoint} {STATUS_TEXTS[response.code]} ({response.code}): set HF_TOKEN to a "
                f"token that may read {self.repository_name}, or to nothing for a model that is public")
        if error_code in {"RepoNotFound", ""} and response.code in {401, 403, 404}:
            return RepositoryNotFoundError(
                f"there is no model {self.repository_name} at {self.endpoint}, or it is private: check the name, "
                                           "and for a private one set HF_TOKEN to a token that may read it")
        return ValueError(f"the Hub at {self.endpoint} answers {response.code} {response.reason}: "
                          f"{error_code or 'it gives no cause'}")


def parse_listing(text: bytes, endpoint: str) -> RepositoryListing:
    """Parse a listing. Only names without a folder, which are safe as paths, and POOLING_CONFIG_FILE are kept."""
    try:
        fields = json.loads(text)
        commit, names = fields["sha"], tuple(file["rfilename"] for file in fields["siblings"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ServerUnreachableError(
            f"{endpoint} answers with something else than a model of the Hub; see HF_ENDPOINT") from error
    if not isinstance(commit, str) or not COMMIT_PATTERN.fullmatch(commit):
        raise ServerUnreachableError(f"{endpoint} names a commit that is none: {commit!r}")
    return RepositoryListing(commit, tuple(name for name in names if isinstance(name, str) and (
        name == POOLING_CONFIG_FILE or ETAG_PATTERN.fullmatch(name))))


def parse_retry_after(response: HTTPError) -> float:
    """Return the seconds of the Retry-After header, or 0."""
    header = response.headers.get("Retry-After", "")
    return float(header) if header.isascii() and header.isdigit() else 0.0
