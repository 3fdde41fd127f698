"""Download of a model as a process: `python -P -m launcher.hub.model_download JSON`, where JSON is a `DownloadRequest`
object.

The first line of standard input is the token, or empty. The end of standard input means that the parent has ended, and
ends the process too. Partial downloads are kept, and the next download resumes them.
"""

import errno
import json
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from launcher.console_output import ConsoleOutput, format_bytes
from launcher.hub.cache import CachedRepository
from launcher.hub.client import (
    POOLING_CONFIG_FILE,
    HubClient,
    RemoteFile,
    RepositoryListing,
    RepositoryNotFoundError,
    ServerUnreachableError,
)
from launcher.hub.download_display import DownloadDisplay
from launcher.hub.download_runner import DownloadRequest
from launcher.hub.file_download import DownloadError, FileDownloader
from launcher.hub.progress_bar import DownloadProgress
from launcher.hub.resolve import (
    SINGLE_WEIGHT_FILE,
    WEIGHT_INDEX_FILE,
    check_model_file_names,
    find_model,
    read_indexed_file_names,
)
from launcher.hub.retry_policy import RETRY_PAUSES_SECONDS, RetryPolicy

NEEDED_FILES = frozenset({
    WEIGHT_INDEX_FILE, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "modules.json", POOLING_CONFIG_FILE})
MAX_CONCURRENT_FILES = 8  # maximum concurrent files
MAX_FILE_BYTES = 50e9  # bytes
REDRAW_SECONDS = 0.2  # seconds between two updates of the progress line
Item = TypeVar("Item")
Result = TypeVar("Result")


class ModelDownload:
    """Download of all files that a server needs of one model, several at a time."""

    def __init__(self, request: DownloadRequest, token: str, display: DownloadDisplay, clock: Callable[[], float],
                 pauses: Sequence[float] = RETRY_PAUSES_SECONDS) -> None:
        self._request, self._display, self._clock, self._pauses = request, display, clock, pauses
        self._hub_client = HubClient(request.endpoint, request.name, token, request.user_agent)
        self._cached_repository = CachedRepository(Path(request.cache_folder), request.name)
        self._stop_event = threading.Event()
        self._state_lock = threading.Lock()
        self._has_reported_waiting = False  # whether waiting for another process was reported
        self._progress: DownloadProgress | None = None  # None unless a download of known size runs

    def download_model(self) -> None:
        """Download the model. Raises ValueError for a user's error, else DownloadError or ServerUnreachableError."""
        try:
            listing = self._make_retry_policy().call_with_retries(partial(self._hub_client.fetch_listing,
                                                                          self._request.revision))
        except ServerUnreachableError as error:
            self._use_cached_model(error)
            return
        except RepositoryNotFoundError as error:
            raise RepositoryNotFoundError(f"{error}; nor is there a folder {folder}"
                                          if (folder := self._request.missing_folder) else str(error)) from error
        check_model_file_names(listing.file_names, f"{self._request.name} at {self._request.endpoint}")
        try:
            self._download_all_files(listing)
        except OSError as error:
            raise self._make_write_error(error) from error

    def _use_cached_model(self, error: ServerUnreachableError) -> None:
        try:
            find_model(self._request.name, self._request.revision, self._cached_repository.cache_folder)
        except ValueError:
            if folder := self._request.missing_folder:
                raise ServerUnreachableError(f"{error}; nor is there a folder {folder}") from None
            raise error from None
        self._display.print_message(
            f"warning: {error}; {self._request.name} stays as it is in the cache, which may be outdated")

    def _download_all_files(self, listing: RepositoryListing) -> None:
        """Download the index first, since it names the weight files, and then all needed files."""
        started_at, names = self._clock(), set(listing.file_names)
        self._cached_repository.create_blobs_folder()
        index = self._fetch_files_metadata(listing.commit, {WEIGHT_INDEX_FILE} & names)
        self._download_files(listing.commit, index)
        weights = read_indexed_file_names(self._cached_repository.get_blob_path(index[0].etag)) if index else {
            SINGLE_WEIGHT_FILE}
        if not weights or weights - names:
            missing_file = min(weights - names, default=f"file of weights that its {WEIGHT_INDEX_FILE} names")
            raise ValueError(f"{self._request.name} at {self._request.endpoint} has no {missing_file}")
        files = self._fetch_files_metadata(listing.commit, weights | set(filter(is_needed_file, names)))
        self._download_files(listing.commit, files)
        self._cached_repository.publish_snapshot(listing.commit, {file.name: file.etag for file in files},
                                                 self._request.revision)
        self._display.print_message(
            f"{self._request.name} is here: commit {listing.commit[:8]}, {len(files)} files, "
            f"{format_bytes(sum(file.num_bytes for file in files))}, {self._clock() - started_at:.0f} s")

    def _fetch_files_metadata(self, commit: str, names: Collection[str]) -> list[RemoteFile]:
        """Return name, ETag and size of each file. Raises ValueError for one too large for the Hub's HTTP downloads."""
        files = self._run_concurrently(lambda name: self._make_retry_policy().call_with_retries(
            partial(self._hub_client.fetch_file_metadata, name, commit)), sorted(names))
        if too_large := [file for file in files if file.num_bytes > MAX_FILE_BYTES]:
            raise ValueError(
                f"{too_large[0].name} has {format_bytes(too_large[0].num_bytes)}, and the Hub sends no file above "
                f"{format_bytes(MAX_FILE_BYTES)} over HTTP; `hf download {self._request.name}` brings it")
        return files

    def _download_files(self, commit: str, files: Sequence[RemoteFile]) -> None:
        """Download files, each content once.

        The largest are first, so that none of them runs alone at the end.
        """
        unique_files = sorted({file.etag: file for file in files}.values(), key=lambda file: -file.num_bytes)
        total_bytes = sum(file.num_bytes for file in unique_files)
        done_bytes = sum(self._cached_repository.count_downloaded_bytes(file.etag, file.num_bytes)
                         for file in unique_files)
        self._check_free_disk(total_bytes - done_bytes)
        if total_bytes > done_bytes:
            self._progress = DownloadProgress(f"downloading {self._request.name}", total_bytes, done_bytes,
                                              self._clock())
            self._display.print_start(self._progress)
        downloader = FileDownloader(self._hub_client, self._cached_repository, commit, self._stop_event,
                                    self._make_retry_policy, self._report_waiting, self._record_received_bytes)
        self._run_concurrently(downloader.download_file, unique_files)
        self._progress = None

    def _run_concurrently(self, operation: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply `operation` to all items concurrently and return the results in order. The first failure stops all."""
        pool = ThreadPoolExecutor(MAX_CONCURRENT_FILES)
        try:
            futures = [pool.submit(operation, item) for item in items]
            pending = set(futures)
            while pending:
                finished, pending = wait(pending, REDRAW_SECONDS, FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if self._progress:
                    self._display.show_progress(self._progress)
            return [future.result() for future in futures]
        except BaseException:
            self._stop_event.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._display.clear_bar()

    def _record_received_bytes(self, num_bytes: int) -> None:
        with self._state_lock:
            if self._progress:
                self._progress.done_bytes += num_bytes

    def _report_waiting(self) -> None:
        """Report waiting for another process, only once, since it affects many files."""
        with self._state_lock:
            has_reported, self._has_reported_waiting = self._has_reported_waiting, True
        if not has_reported:
            self._display.print_message(f"another process downloads {self._request.name}; waiting for it")

    def _make_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self._stop_event, self._display.print_message, self._pauses)

    def _check_free_disk(self, num_bytes: int) -> None:
        """Raise DownloadError if the disk is too small, before hours are spent on filling it."""
        free = shutil.disk_usage(self._cached_repository.folder).free
        if num_bytes > free:
            raise DownloadError(f"the disk is too small: {format_bytes(num_bytes)} are to be downloaded, and "
                                f"{format_bytes(free)} are free where the " f"cache is, "
                                f"{self._cached_repository.cache_folder}; make room, or set HF_HOME to a folder on "
                                f"another disk")

    def _make_write_error(self, error: OSError) -> DownloadError:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            self._check_free_disk(self._progress.total_bytes - self._progress.done_bytes if self._progress else 0)
        return DownloadError(f"cannot write to the cache, {error.filename or self._cached_repository.cache_folder}: "
                             f"{error.strerror}; set " "HF_HOME to a folder that can be written")


def is_needed_file(name: str) -> bool:
    return name in NEEDED_FILES or name.startswith("LICENSE")


def exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def exit_with_error(output: ConsoleOutput, message: str, exit_code: int) -> NoReturn:
    """Report an error and exit at once, without joining threads that wait for the Hub."""
    output.log(" ".join(message.split()), logging.ERROR)
    os._exit(exit_code)


def main() -> None:
    request = DownloadRequest(**json.loads(sys.argv[1]))
    token = sys.stdin.readline().strip()
    threading.Thread(target=exit_with_parent, daemon=True).start()
    output = ConsoleOutput(as_json=request.as_json)
    try:
        ModelDownload(request, token, DownloadDisplay(output.make_progress_stream(), time.monotonic,
                                                      hides_progress=request.hides_progress),
                      time.monotonic).download_model()
    except ValueError as error:
        exit_with_error(output, str(error), 2)
    except (DownloadError, ServerUnreachableError) as error:
        exit_with_error(output, str(error), 1)
    os._exit(0)


if __name__ == "__main__":
    main()
