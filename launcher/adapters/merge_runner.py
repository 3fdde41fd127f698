"""Runner of adapter merges: each is computed once, by a child process, one at a time, and stored like any other
version.

The digest of a result is written to the store, so that it is found after a restart.
"""

import json
import logging
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from launcher.adapters.adapter_files import ADAPTER_FILES
from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error
from launcher.adapters.store import AdapterVersion, AdapterVersionStore, IncomingFolder
from launcher.adapters.store_protocol import DIGEST_PATTERN, MergeRequest
from launcher.hub.cache import replace_atomically

MERGE_TIMEOUT_SECONDS = 600.0  # per merge
MAX_ERROR_LENGTH = 300  # maximum characters of the child's error

logger = logging.getLogger(__name__)


class AdapterMergeRunner:
    """Runner of merges. `close` kills the running one and cancels the others."""

    def __init__(self, store: AdapterVersionStore, command: Sequence[str]) -> None:
        self._store, self._merge_command = store, command
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="merging")
        self._child_lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start_merge(self, request: MergeRequest) -> "Future[AdapterVersion]":
        """Return a future of the merged version, or of AdapterError."""
        return self._executor.submit(self._get_or_compute_merge, request)

    def kill_and_refuse_merges(self) -> None:
        """Kill the merging process and let no other start. Thread-safe."""
        with self._child_lock:
            self._closed = True
            if self._child:
                self._child.kill()

    def close(self) -> None:
        self.kill_and_refuse_merges()
        self._executor.shutdown(cancel_futures=True)

    # -- in the thread

    def _get_or_compute_merge(self, request: MergeRequest) -> AdapterVersion:
        with convert_errors_to_adapter_error("the merged adapter"):
            return self._find_earlier_result(request) or self._compute_merge(request)

    def _find_earlier_result(self, request: MergeRequest) -> AdapterVersion | None:
        digest_file = self._result_digest_file(request)
        digest = digest_file.read_text() if digest_file.is_file() else ""
        return self._store.find_version(digest) if DIGEST_PATTERN.fullmatch(digest) else None

    def _compute_merge(self, request: MergeRequest) -> AdapterVersion:
        with self._store.protect_versions(request.digests), self._store.create_incoming_folder() as incoming:
            versions = [self._get_version(digest) for digest in request.digests]
            with self._store.reserve_room(max(part.contents.file_bytes for part in versions)):
                if error_text := self._run_child(make_merge_argument(request, versions, incoming.folder), incoming):
                    logger.warning("adapters could not be merged: %s", error_text)
                    names = {incoming.folder: "the merged adapter"} | {
                        part.folder: f"adapter {place}" for place, part in enumerate(versions, start=1)}
                    raise AdapterError("invalid", "the adapters could not be merged: "
                                       f"{replace_folders(error_text, names)[:MAX_ERROR_LENGTH]}")
                if missing_files := [name for name in ADAPTER_FILES if not (incoming.folder / name).is_file()]:
                    raise AdapterError("invalid", f"the adapters could not be merged: no {missing_files[0]} came of it")
                version = self._store.publish_version(incoming.folder)
        replace_atomically(self._result_digest_file(request), lambda path: path.write_text(version.digest))
        return version

    def _get_version(self, digest: str) -> AdapterVersion:
        if (version := self._store.find_version(digest)) is None:
            raise AdapterError("missing", f"there is no version {digest} any more; fetch it again")
        return version

    def _run_child(self, argument: str, incoming: IncomingFolder) -> str:
        """Run the child, which inherits the lock of the folder. Return its error, with the paths of folders; empty
        without one.

        If this process is killed, no other process clears the folder while the child still writes to it.
        """
        with self._child_lock:
            if self._closed:
                raise AdapterError("unreachable", "the server is stopping")
            self._child = child = subprocess.Popen([*self._merge_command, argument], stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                                   pass_fds=(incoming.lock_descriptor,))
        with child:
            error_text = wait_and_read_error(child)
        return error_text if child.returncode else ""

    def _result_digest_file(self, request: MergeRequest) -> Path:
        return self._store.folder / "merged" / request.content_hash


def make_merge_argument(request: MergeRequest, versions: Sequence[AdapterVersion], target_folder: Path) -> str:
    return json.dumps({
        "folders": [str(part.folder) for part in versions], "weights": request.weights, "strategy": request.strategy,
        "density": request.density, "sign": request.sign_method, "seed": request.seed, "into": str(target_folder)})


def wait_and_read_error(child: "subprocess.Popen[bytes]") -> str:
    """Wait for the child to end and return the last line of its stderr, or why there is none."""
    try:
        stderr = child.communicate(timeout=MERGE_TIMEOUT_SECONDS)[1]
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"that takes more than {MERGE_TIMEOUT_SECONDS:g} seconds"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


def replace_folders(text: str, names: Mapping[Path, str]) -> str:
    """Return a text for clients, who must not see the paths of folders, with the folders' names instead."""
    for folder, name in names.items():
        text = text.replace(str(folder), name)
    return text
