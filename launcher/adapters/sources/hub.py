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

from launcher.adapters.contents import CONFIG, FILES, WEIGHTS, check_names, check_sizes, read_base
from launcher.adapters.errors import Refused, called
from launcher.adapters.protocol import Allowed, Fetch
from launcher.adapters.remote_version import Sighting
from launcher.hub.cache import Kept
from launcher.hub.client import Gated, Hub, NoSuchModel, NoSuchRevision, RemoteFile, TokenRefused, Unreachable
from launcher.hub.resolve import HUB_NAME, REVISION
from launcher.hub.retry_policy import Patience
from launcher.hub.transfer import NotDownloaded, Transfer, checksummed

PAUSES = (1.0, 2.0, 4.0)  # seconds; a client waits
TRIES = 3
NOT_SHOWN = (NoSuchModel, Gated, TokenRefused)
Answer = TypeVar("Answer")


class Repository(NamedTuple):
    name: str
    revision: str


class Remote(NamedTuple):
    """Adapter at the Hub at one commit, and the token that could read it."""

    hub: Hub
    token: str
    commit: str
    files: Mapping[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Access to the Hub, and the folders of downloads."""

    endpoint: str
    client: str  # the User-Agent
    offline: str  # name of the variable that forbids connections, or ""
    downloads: Path
    cache: Path  # the user's Hub cache, which other programs fill
    own_token: str = field(default="", repr=False)


class HubSource:
    is_far = True

    def __init__(self, access: HubSettings, pauses: Sequence[float] = PAUSES) -> None:
        self._access, self._pauses = access, pauses
        self._stopped = threading.Event()  # never set: downloads end with the process

    def tokens(self, asked: Fetch) -> tuple[str, ...]:
        own = self._access.own_token if asked.own_token else ""
        return tuple(dict.fromkeys(("", asked.token, own)))

    @contextmanager
    def look(self, asked: Fetch) -> Iterator[Sighting]:
        repository = read_name(asked.name)
        remote = self._asked(lambda: self._first_seen(repository, self.tokens(asked)))
        kept = Kept(self._access.downloads, repository.name)
        if remote.token:  # private now: `nearby` must not find a download from a time when it was public
            (kept.folder / "refs" / repository.revision).unlink(missing_ok=True)
        files = remote.files.values()
        try:
            yield Sighting(
                sum(file.size - kept.size_so_far(file.etag, file.size) for file in files),
                lambda folder: self._asked(lambda: self._bring(remote, kept, repository.revision, folder)),
                tuple(file.etag for file in files) if all(map(checksummed, files)) else None,
                remote.token, private=bool(remote.token))
        finally:
            drop_unused([kept.blob(file.etag) for file in files])

    def nearby(self, asked: Fetch) -> Sighting | None:
        """Return a copy on this machine, or None.

        Own downloads were public when they were downloaded. The user's Hub cache may hold private adapters, so it is
        only used for the operator's own adapters (`own_token`), or if a variable forbids connections to the Hub.
        """
        repository, offline = read_name(asked.name), bool(self._access.offline)
        if found := snapshot(self._access.downloads, repository):
            return sighting_of(found, private=False)
        if (offline or asked.own_token) and (found := snapshot(self._access.cache, repository)):
            return sighting_of(found, private=not offline)
        return None

    def check_allowed(self, asked: Allowed) -> None:
        """Raise Refused unless the token may read the adapter.

        One HEAD request for the weights is enough: the Hub checks access and answers with a redirect.
        """
        repository = read_name(asked.name)
        hub = Hub(self._access.endpoint, repository.name, asked.token, self._access.client)
        try:
            self._asked(lambda: hub.file(WEIGHTS, repository.revision))
        except NOT_SHOWN as error:
            raise self._not_shown(repository, [error]) from None

    def _asked(self, work: Callable[[], Answer]) -> Answer:
        """Return the result of `work`. Raises Refused if the Hub cannot be reached or must not be."""
        if self._access.offline:
            raise Refused("missing", f"{self._access.offline} is set, so the Hub is not asked, and the adapter is "
                                         "not on this machine")
        try:
            return work()
        except (Unreachable, NotDownloaded) as error:
            raise Refused("unreachable", str(error)) from None

    def _first_seen(self, repository: Repository, tokens: Sequence[str]) -> Remote:
        refusals: list[ValueError] = []
        for token in tokens:
            try:
                return self._seen(repository, token)
            except NOT_SHOWN as error:
                refusals.append(error)
            except NoSuchRevision:
                raise Refused("missing", f"the adapter {repository.name} has no revision "
                                         f"{called(repository.revision)}") from None
        raise self._not_shown(repository, refusals)

    def _seen(self, repository: Repository, token: str) -> Remote:
        hub = Hub(self._access.endpoint, repository.name, token, self._access.client)
        listing = self._patience().ask(partial(hub.listing, repository.revision))
        check_names(listing.names, f"{repository.name} at {self._access.endpoint}")
        files = {name: self._patience().ask(partial(hub.file, name, listing.commit)) for name in FILES}
        check_sizes({name: file.size for name, file in files.items()})
        return Remote(hub, token, listing.commit, files)

    def _not_shown(self, repository: Repository, refusals: Sequence[ValueError]) -> Refused:
        """Return the refusal. Like the Hub's answer, it does not reveal whether a private adapter exists."""
        name, endpoint = repository.name, self._access.endpoint
        if any(isinstance(refusal, Gated) for refusal in refusals):
            return Refused("forbidden", f"the adapter {name} is gated: ask for access at {endpoint}/{name}, and send a "
                                        "token of an account that has it")
        return Refused("missing", f"there is no adapter {name} at {endpoint}, or the token of the request may not read "
                                  "it")

    def _bring(self, remote: Remote, kept: Kept, revision: str, folder: Path) -> None:
        kept.prepare()
        transfer = Transfer(remote.hub, kept, remote.commit, self._stopped, self._patience, quiet, quiet)
        for name, file in remote.files.items():
            try:
                bring(transfer, file, folder / name)
            except OSError:  # the disk is full, or worse: free the space of the partial download
                drop_beginning(kept, file)
                raise
            if name == CONFIG:
                read_base(folder)
        if not remote.token:
            kept.publish(remote.commit, {name: file.etag for name, file in remote.files.items()}, revision)

    def _patience(self) -> Patience:
        return Patience(self._stopped, quiet, self._pauses)


def read_name(name: str) -> Repository:
    path, at, revision = name.partition("@")
    revision = revision if at else "main"
    if not HUB_NAME.fullmatch(path):
        raise Refused("invalid", f"an adapter of the Hub has a name such as org/name or org/name@revision, got "
                                 f"{called(name)}")
    if not REVISION.fullmatch(revision):
        raise Refused("invalid", "the revision of an adapter must be a branch, a tag or a commit of at most 200 "
                                 f"characters, got {called(revision)}")
    return Repository(path, revision)


def bring(transfer: Transfer, file: RemoteFile, target: Path) -> None:
    """Download a file and hard-link it to `target` instead of copying it.

    Retried, because a concurrent fetch of the same file may remove the download before it is linked.
    """
    blob = transfer.kept.blob(file.etag)
    for _ in range(TRIES):
        transfer.bring(file)
        with suppress(FileNotFoundError):
            link(blob, target)
            return
    raise NotDownloaded(f"{file.name} of {transfer.hub.name} is dropped again and again; try again")


def drop_beginning(kept: Kept, file: RemoteFile) -> None:
    with kept.locked(file.etag, quiet):
        kept.beginning(file.etag).unlink(missing_ok=True)


def link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # a filesystem without hard links
        shutil.copyfile(path, target)


def drop_unused(blobs: Sequence[Path]) -> None:
    """Delete the downloads that are not linked to a stored version."""
    for blob in blobs:
        with suppress(FileNotFoundError):
            if blob.stat().st_nlink == 1:
                blob.unlink()


def snapshot(cache: Path, repository: Repository) -> Path | None:
    """Return the snapshot's folder if both files are in the cache."""
    folder = Kept(cache, repository.name).snapshot(repository.revision)
    return folder if all((folder / name).is_file() for name in FILES) else None


def sighting_of(folder: Path, *, private: bool) -> Sighting:
    files = [(folder / name).stat() for name in FILES]
    check_sizes(dict(zip(FILES, (file.st_size for file in files), strict=True)))
    stamp = tuple((file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns) for file in files)
    return Sighting(sum(file.st_size for file in files), partial(copy_all, folder), stamp, private=private)


def copy_all(source: Path, target: Path) -> None:
    for name in FILES:
        shutil.copyfile(source / name, target / name)


def quiet(*_: object) -> None:
    """Ignore progress: a client only receives the result."""
