"""Source `hub`: adapters at the Hub, `org/name` or `org/name@revision`, downloaded into the store.

Every adapter is first requested without a token, so that the use of a token shows that it is private. If the Hub cannot
be reached, copies on this machine are used. The config is checked before the weights are downloaded.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from launcher.adapters.adapter_files import (
    ADAPTER_FILES,
    CONFIG_FILE,
    WEIGHTS_FILE,
    check_adapter_file_names,
    check_adapter_file_sizes,
    read_base_model_name,
)
from launcher.adapters.errors import AdapterError, quote_name
from launcher.adapters.sources.interface import FetchableAdapter
from launcher.adapters.store_protocol import AccessCheckRequest, FetchRequest
from launcher.hub.cache import CachedRepository
from launcher.hub.client import (
    GatedRepositoryError,
    HubClient,
    RemoteFile,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    ServerUnreachableError,
    TokenRejectedError,
)
from launcher.hub.file_download import DownloadError, FileDownloader, is_etag_checksum
from launcher.hub.resolve import HUB_NAME_PATTERN, REVISION_PATTERN
from launcher.hub.retry_policy import RetryPolicy

RETRY_PAUSES_SECONDS = (1.0, 2.0, 4.0)  # seconds; a client waits
MAX_LINK_ATTEMPTS = 3
ACCESS_ERRORS = (RepositoryNotFoundError, GatedRepositoryError, TokenRejectedError)
Result = TypeVar("Result")


class RepositoryRevision(NamedTuple):
    """Repository at the Hub and its branch, tag or commit."""

    name: str
    revision: str


class HubAdapter(NamedTuple):
    """LoRA adapter in a repository of the Hub at one commit, and the token that could read it."""

    hub_client: HubClient
    token: str
    commit: str
    remote_files: Mapping[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class HubSourceSettings:
    """Access to the Hub, and the folders of downloads."""

    endpoint: str
    user_agent: str  # the User-Agent
    offline_variable: str  # name of the variable that forbids connections, or ""
    downloads_folder: Path
    user_hub_cache: Path  # the user's Hub cache, which other programs fill
    server_token: str = field(default="", repr=False)


class HubSource:
    """Source `hub`: adapters in repositories of the Hub."""

    is_remote = True

    def __init__(self, settings: HubSourceSettings, pauses: Sequence[float] = RETRY_PAUSES_SECONDS) -> None:
        self._settings, self._pauses = settings, pauses
        self._stop_event = threading.Event()  # never set: downloads end with the process

    def make_uri(self, name: str) -> str:
        return f"hub://{parse_hub_adapter_name(name).name}"

    def list_tokens_to_try(self, request: FetchRequest) -> tuple[str, ...]:
        server_token = self._settings.server_token if request.is_from_settings else ""
        return tuple(dict.fromkeys(("", request.token, server_token)))

    @contextmanager
    def open_adapter(self, request: FetchRequest) -> Iterator[FetchableAdapter]:
        repository = parse_hub_adapter_name(request.name)
        hub_adapter = self._call_hub(lambda: self._find_with_first_valid_token(repository,
                                                                               self.list_tokens_to_try(request)))
        cached_repository = CachedRepository(self._settings.downloads_folder, repository.name)
        if hub_adapter.token:  # private now: `find_local_copy` must not find a download from a time when it was public
            (cached_repository.folder / "refs" / repository.revision).unlink(missing_ok=True)
        files = hub_adapter.remote_files.values()
        try:
            yield FetchableAdapter(
                sum(file.num_bytes - cached_repository.count_downloaded_bytes(file.etag, file.num_bytes)
                    for file in files),
                lambda folder: self._call_hub(lambda: self._download_adapter(hub_adapter, cached_repository,
                                                                             repository.revision, folder)),
                tuple(file.etag for file in files) if all(map(is_etag_checksum, files)) else None,
                hub_adapter.token, is_private=bool(hub_adapter.token))
        finally:
            remove_unlinked_blobs([cached_repository.get_blob_path(file.etag) for file in files])

    def find_local_copy(self, request: FetchRequest) -> FetchableAdapter | None:
        """Return a copy on this machine, or None.

        Own downloads were public when they were downloaded. The user's Hub cache may hold private adapters, so it is
        only used if the request may use the server's own token, or if a variable forbids connections to the Hub.
        """
        repository, is_offline = parse_hub_adapter_name(request.name), bool(self._settings.offline_variable)
        if snapshot_folder := find_complete_snapshot(self._settings.downloads_folder, repository):
            return make_snapshot_version(snapshot_folder, is_private=False)
        if (is_offline or request.is_from_settings) and (
            snapshot_folder := find_complete_snapshot(self._settings.user_hub_cache, repository)):
            return make_snapshot_version(snapshot_folder, is_private=not is_offline)
        return None

    def check_access(self, request: AccessCheckRequest) -> None:
        """Raise AdapterError unless the token may read the adapter.

        One HEAD request for the weights is enough: the Hub checks access and answers with a redirect.
        """
        repository = parse_hub_adapter_name(request.name)
        hub_client = HubClient(self._settings.endpoint, repository.name, request.token, self._settings.user_agent)
        try:
            self._call_hub(lambda: hub_client.fetch_file_metadata(WEIGHTS_FILE, repository.revision))
        except ACCESS_ERRORS as error:
            raise self._make_access_error(repository, [error]) from None

    def _call_hub(self, operation: Callable[[], Result]) -> Result:
        """Return the result of `operation`. Raises AdapterError if the Hub cannot be reached or must not be."""
        if self._settings.offline_variable:
            raise AdapterError("missing",
                               f"{self._settings.offline_variable} is set, so the Hub is not asked, and the adapter is "
                               "not on this machine")
        try:
            return operation()
        except (ServerUnreachableError, DownloadError) as error:
            raise AdapterError("unreachable", str(error)) from None

    def _find_with_first_valid_token(self, repository: RepositoryRevision, tokens: Sequence[str]) -> HubAdapter:
        errors: list[ValueError] = []
        for token in tokens:
            try:
                return self._fetch_adapter_metadata(repository, token)
            except ACCESS_ERRORS as error:
                errors.append(error)
            except RevisionNotFoundError:
                raise AdapterError("missing", f"the adapter {repository.name} has no revision "
                                   f"{quote_name(repository.revision)}") from None
        raise self._make_access_error(repository, errors)

    def _fetch_adapter_metadata(self, repository: RepositoryRevision, token: str) -> HubAdapter:
        hub_client = HubClient(self._settings.endpoint, repository.name, token, self._settings.user_agent)
        listing = self._make_retry_policy().call_with_retries(partial(hub_client.fetch_listing, repository.revision))
        check_adapter_file_names(listing.file_names, f"{repository.name} at {self._settings.endpoint}")
        files = {name: self._make_retry_policy().call_with_retries(partial(hub_client.fetch_file_metadata, name,
                                                                           listing.commit)) for name in ADAPTER_FILES}
        check_adapter_file_sizes({name: file.num_bytes for name, file in files.items()})
        return HubAdapter(hub_client, token, listing.commit, files)

    def _make_access_error(self, repository: RepositoryRevision, errors: Sequence[ValueError]) -> AdapterError:
        """Return the refusal. Like the Hub's answer, it does not reveal whether a private adapter exists."""
        name, endpoint = repository.name, self._settings.endpoint
        if any(isinstance(refusal, GatedRepositoryError) for refusal in errors):
            return AdapterError("forbidden",
                                f"the adapter {name} is gated: ask for access at {endpoint}/{name}, and send a "
                                "token of an account that has it")
        return AdapterError("missing",
                            f"there is no adapter {name} at {endpoint}, or the token of the request may not read " "it")

    def _download_adapter(self, hub_adapter: HubAdapter, cached_repository: CachedRepository, revision: str,
                          folder: Path) -> None:
        cached_repository.create_blobs_folder()
        downloader = FileDownloader(hub_adapter.hub_client, cached_repository, hub_adapter.commit, self._stop_event,
                                    self._make_retry_policy, ignore_progress, ignore_progress)
        for name, file in hub_adapter.remote_files.items():
            try:
                download_and_link_file(downloader, file, folder / name)
            except OSError:  # the disk is full, or worse: free the space of the partial download
                remove_partial_download(cached_repository, file)
                raise
            if name == CONFIG_FILE:
                read_base_model_name(folder)
        if not hub_adapter.token:
            cached_repository.publish_snapshot(hub_adapter.commit,
                                               {name: file.etag for name, file in hub_adapter.remote_files.items()},
                                               revision)

    def _make_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self._stop_event, ignore_progress, self._pauses)


def parse_hub_adapter_name(name: str) -> RepositoryRevision:
    path, at, revision = name.partition("@")
    revision = revision if at else "main"
    if not HUB_NAME_PATTERN.fullmatch(path):
        raise AdapterError("invalid", f"an adapter of the Hub has a name such as org/name or org/name@revision, got "
                           f"{quote_name(name)}")
    if not REVISION_PATTERN.fullmatch(revision):
        raise AdapterError("invalid", "the revision of an adapter must be a branch, a tag or a commit of at most 200 "
                           f"characters, got {quote_name(revision)}")
    return RepositoryRevision(path, revision)


def download_and_link_file(downloader: FileDownloader, file: RemoteFile, target: Path) -> None:
    """Download a file and hard-link it to `target` instead of copying it.

    Retried, because a concurrent fetch of the same file may remove the download before it is linked.
    """
    blob = downloader.cached_repository.get_blob_path(file.etag)
    for _ in range(MAX_LINK_ATTEMPTS):
        downloader.download_file(file)
        with suppress(FileNotFoundError):
            link_or_copy(blob, target)
            return
    raise DownloadError(f"{file.name} of {downloader.hub_client.repository_name} is dropped again and again; try again")


def remove_partial_download(cached_repository: CachedRepository, file: RemoteFile) -> None:
    with cached_repository.lock_blob(file.etag, ignore_progress):
        cached_repository.get_partial_blob_path(file.etag).unlink(missing_ok=True)


def link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # a filesystem without hard links
        shutil.copyfile(path, target)


def remove_unlinked_blobs(blobs: Sequence[Path]) -> None:
    """Delete the downloads that are not linked to a stored version."""
    for blob in blobs:
        with suppress(FileNotFoundError):
            if blob.stat().st_nlink == 1:
                blob.unlink()


def find_complete_snapshot(cache_folder: Path, repository: RepositoryRevision) -> Path | None:
    """Return the snapshot's folder if both files are in the cache."""
    folder = CachedRepository(cache_folder, repository.name).get_snapshot_folder(repository.revision)
    return folder if all((folder / name).is_file() for name in ADAPTER_FILES) else None


def make_snapshot_version(folder: Path, *, is_private: bool) -> FetchableAdapter:
    files = [(folder / name).stat() for name in ADAPTER_FILES]
    check_adapter_file_sizes(dict(zip(ADAPTER_FILES, (file.st_size for file in files), strict=True)))
    stamp = tuple((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns) for file in files)
    return FetchableAdapter(sum(file.st_size for file in files), partial(copy_adapter_files, folder), stamp,
                            is_private=is_private)


def copy_adapter_files(source: Path, target: Path) -> None:
    for name in ADAPTER_FILES:
        shutil.copyfile(source / name, target / name)


def ignore_progress(*_: object) -> None:
    """Ignore progress: a client only receives the result."""
