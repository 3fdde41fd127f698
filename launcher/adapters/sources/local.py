"""Source `local`: adapters in folders below a root that the server's operator chose.

Names come from clients, so nothing outside the root may ever be opened: links are resolved first, and the resolved path
is then opened component by component from the root, without following links.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import NamedTuple

from launcher.adapters.adapter_files import (
    ADAPTER_FILES,
    CONFIG_FILE,
    PICKLED_WEIGHTS_FILE,
    WEIGHTS_FILE,
    check_adapter_file_names,
    check_adapter_file_sizes,
)
from launcher.adapters.errors import AdapterError, quote_name
from launcher.adapters.sources.interface import FetchableAdapter
from launcher.adapters.store_protocol import FetchRequest

SOURCE_DISABLED_ERROR = "the source `local` is closed: start the server with --adapter-root FOLDER"
CHUNK_BYTES = 2**20
MAX_LISTED_NAMES = 1000
MIN_UNCHANGED_NANOSECONDS = 10**9  # nanoseconds; a file changed more recently may change again with the same timestamp


class FileStamp(NamedTuple):
    """Status of a file; an equal stamp means that the file has not changed."""

    device: int
    inode: int
    num_bytes: int
    modified_at_ns: int
    changed_at_ns: int


class OpenedFile(NamedTuple):
    """File of an adapter that was opened, and its stamp at that time."""

    path_below_root: tuple[str, ...]  # below the root
    descriptor: int
    stamp: FileStamp


class LocalSource:
    """Source `local`: adapters in folders below the root of --adapter-root."""

    is_remote = False

    def __init__(self, root: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._root, self._clock_ns = root, clock_ns

    def make_uri(self, name: str) -> str:
        return f"local://{name}"

    def list_tokens_to_try(self, request: FetchRequest) -> tuple[str, ...]:  # noqa: ARG002 - files need no token
        return ("",)

    def find_local_copy(self, request: FetchRequest) -> None:
        """Return None: there is no cache besides the files themselves."""

    def list_names(self) -> list[str]:
        """Return the names of the adapters directly below the root, sorted, at most MAX_LISTED_NAMES. Adapters in
        folders below them are served, too."""
        if not self._root:
            return []
        names = (path.parent.name for path in Path(self._root).glob(f"*/{CONFIG_FILE}"))
        return sorted(islice(names, MAX_LISTED_NAMES))

    @contextmanager
    def open_adapter(self, request: FetchRequest) -> Iterator[FetchableAdapter]:
        if not self._root:
            raise AdapterError("forbidden", SOURCE_DISABLED_ERROR)
        with ExitStack() as open_files:
            root_descriptor = register_for_closing(open_files,
                                                   os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            files = {name: self._open_file(open_files, root_descriptor, request.name, name)
                     for name in self._find_adapter_files(root_descriptor, request.name)}
            sizes = {name: file.stamp.num_bytes for name, file in files.items()}
            check_adapter_file_sizes(sizes)
            yield FetchableAdapter(sum(sizes.values()), partial(copy_and_verify_unchanged, root_descriptor, files),
                                   self._make_version_stamp(request, files))

    def _find_adapter_files(self, root_descriptor: int, name: str) -> tuple[str, ...]:
        """Return the names of the adapter's files. Raises AdapterError if one is missing."""
        folder = self._resolve_below_root(name)
        if not is_folder(root_descriptor, folder):
            raise AdapterError("missing", f"there is no adapter {quote_name(name)} below the folder of --adapter-root")
        file_names = [file for file in (CONFIG_FILE, WEIGHTS_FILE, PICKLED_WEIGHTS_FILE)
                      if self._has_file(root_descriptor, name, file)]
        check_adapter_file_names(file_names, f"the folder {quote_name(name)}")
        return ADAPTER_FILES

    def _has_file(self, root_descriptor: int, name: str, file: str) -> bool:
        with suppress(OSError, AdapterError):
            stat_below_root(root_descriptor, self._resolve_below_root(name, file))
            return True
        return False

    def _resolve_below_root(self, *names: str) -> tuple[str, ...]:
        """Return the components of the resolved path below the root. Raises AdapterError for a path outside of it."""
        if ".." in PurePath(names[0]).parts or "\0" in names[0]:
            raise make_outside_root_error(names[0])
        try:
            resolved_root = os.path.realpath(self._root)
            path = PurePath(os.path.join(resolved_root, self._make_relative_to_root(names[0], resolved_root),
                                         *names[1:]))
            return PurePath(os.path.realpath(path)).relative_to(resolved_root).parts
        except (ValueError, OSError):
            raise make_outside_root_error(names[0]) from None

    def _make_relative_to_root(self, name: str, resolved_root: str) -> PurePath:
        """Return a name relative to the root. Raises ValueError for an absolute name outside the root.

        An absolute name may begin with the root as configured or as resolved.
        """
        path = PurePath(name)
        if not path.is_absolute():
            return path
        start = next((start for start in (os.path.abspath(self._root), resolved_root) if path.is_relative_to(start)),
                     resolved_root)
        return path.relative_to(start)

    def _open_file(self, open_files: ExitStack, root_descriptor: int, name: str, file: str) -> OpenedFile:
        path = self._resolve_below_root(name, file)
        try:
            file_descriptor = register_for_closing(open_files, open_below_root(root_descriptor, path))
        except OSError as error:
            raise AdapterError("missing", f"cannot open {file} of {quote_name(name)}: {error.strerror}") from None
        status = os.fstat(file_descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AdapterError("invalid", f"{file} of {quote_name(name)} is no regular file")
        return OpenedFile(path, file_descriptor, make_file_stamp(status))

    def _make_version_stamp(self, request: FetchRequest, files: dict[str, OpenedFile]) -> tuple[FileStamp, ...] | None:
        """Return the files' stamps, or None if equal stamps would not prove equal contents or must not be trusted."""
        is_settled = all(self._clock_ns() - max(file.stamp.modified_at_ns, file.stamp.changed_at_ns)
                         > MIN_UNCHANGED_NANOSECONDS for file in files.values())
        return tuple(file.stamp for file in files.values()) if is_settled and not request.skips_name_cache else None


def copy_and_verify_unchanged(root_descriptor: int, files: dict[str, OpenedFile], folder: Path) -> None:
    for name, file in files.items():
        copy_opened_file(file, folder / name)
    for name, file in files.items():
        if not file.stamp == make_file_stamp(os.fstat(file.descriptor)) == read_file_stamp(root_descriptor,
                                                                                           file.path_below_root):
            raise AdapterError("unreachable", f"{name} changed while it was read; try again")


def copy_opened_file(file: OpenedFile, target: Path) -> None:
    """Copy at most the size seen when it was opened: another process may still be appending to the file."""
    offset, size = 0, file.stamp.num_bytes
    with target.open("wb", buffering=0) as target_file:
        while offset < size and (chunk := os.pread(file.descriptor, min(CHUNK_BYTES, size - offset), offset)):
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[target_file.write(unwritten):]
            offset += len(chunk)


def make_file_stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_file_stamp(root_descriptor: int, path: tuple[str, ...]) -> FileStamp | None:
    try:
        return make_file_stamp(stat_below_root(root_descriptor, path))
    except OSError:
        return None


def stat_below_root(root_descriptor: int, path: tuple[str, ...]) -> os.stat_result:
    """Return the status of a file without opening it for reading (O_PATH)."""
    file_descriptor = open_below_root(root_descriptor, path, os.O_PATH)
    try:
        return os.fstat(file_descriptor)
    finally:
        os.close(file_descriptor)


def is_folder(root_descriptor: int, path: tuple[str, ...]) -> bool:
    with suppress(OSError):
        return stat.S_ISDIR(stat_below_root(root_descriptor, path).st_mode)
    return False


def open_below_root(root_descriptor: int, path: tuple[str, ...],
                    flags: int = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) -> int:
    """Open a path component by component without following links, even if one is replaced by a link meanwhile."""
    folder = os.dup(root_descriptor)
    try:
        for component in path[:-1]:
            subfolder = os.open(component, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = subfolder
        return os.open(path[-1] if path else ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


def register_for_closing(open_files: ExitStack, file_descriptor: int) -> int:
    """Return the descriptor, registered to be closed with `open_files`."""
    open_files.callback(os.close, file_descriptor)
    return file_descriptor


def make_outside_root_error(name: str) -> AdapterError:
    return AdapterError("forbidden", f"{quote_name(name)} leads out of the folder of --adapter-root")
