"""Download of a model as a process: `python -P -m launcher.hub.download JSON`, where JSON is an `Order` object.

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

from launcher.hub.cache import Kept
from launcher.hub.client import POOLING, Hub, Listing, NoSuchModel, RemoteFile, Unreachable
from launcher.hub.fetch import Order
from launcher.hub.progress_bar import Meter, amount
from launcher.hub.resolve import INDEX, SINGLE, check_names, find_model, promised
from launcher.hub.retry_policy import PAUSES, Patience
from launcher.hub.screen import Screen
from launcher.hub.transfer import NotDownloaded, Transfer
from launcher.output import Voice

NEEDED = frozenset({
    INDEX, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "modules.json", POOLING})
AT_ONCE = 8  # maximum concurrent files
LARGEST = 50e9  # bytes
REDRAWN = 0.2  # seconds between two updates of the progress line
Item = TypeVar("Item")
Result = TypeVar("Result")


class Download:
    def __init__(self, order: Order, token: str, screen: Screen, clock: Callable[[], float],
                 pauses: Sequence[float] = PAUSES) -> None:
        self._order, self._screen, self._clock, self._pauses = order, screen, clock, pauses
        self._hub = Hub(order.endpoint, order.name, token, order.client)
        self._kept = Kept(Path(order.cache), order.name)
        self._stopped = threading.Event()
        self._counting = threading.Lock()
        self._waits = False  # whether waiting for another process was reported
        self._meter: Meter | None = None  # None unless a download of known size runs

    def run(self) -> None:
        """Download the model. Raises ValueError for a user's error, NotDownloaded or Unreachable for a failure."""
        try:
            listing = self._patience().ask(partial(self._hub.listing, self._order.revision))
        except Unreachable as error:
            self._stay_with_what_is_here(error)
            return
        except NoSuchModel as error:
            raise NoSuchModel(f"{error}; nor is there a folder {folder}" if (folder := self._order.no_folder) else
                              str(error)) from error
        check_names(listing.names, f"{self._order.name} at {self._order.endpoint}")
        try:
            self._bring_all(listing)
        except OSError as error:
            raise self._unwritten(error) from error

    def _stay_with_what_is_here(self, error: Unreachable) -> None:
        try:
            find_model(self._order.name, self._order.revision, self._kept.cache)
        except ValueError:
            raise error from None
        self._screen.say(f"warning: {error}; {self._order.name} stays as it is in the cache, which may be outdated")

    def _bring_all(self, listing: Listing) -> None:
        """Download the index first, since it names the weight files, and then all needed files."""
        started, names = self._clock(), set(listing.names)
        self._kept.prepare()
        index = self._describe(listing.commit, {INDEX} & names)
        self._bring(listing.commit, index)
        weights = promised(self._kept.blob(index[0].etag)) if index else {SINGLE}
        if not weights or weights - names:
            lost = min(weights - names, default=f"file of weights that its {INDEX} names")
            raise ValueError(f"{self._order.name} at {self._order.endpoint} has no {lost}")
        files = self._describe(listing.commit, weights | set(filter(is_needed, names)))
        self._bring(listing.commit, files)
        self._kept.publish(listing.commit, {file.name: file.etag for file in files}, self._order.revision)
        self._screen.say(f"{self._order.name} is here: commit {listing.commit[:8]}, {len(files)} files, "
                         f"{amount(sum(file.size for file in files))}, {self._clock() - started:.0f} s")

    def _describe(self, commit: str, names: Collection[str]) -> list[RemoteFile]:
        """Return name, ETag and size of each file. Raises ValueError for one too large for the Hub's HTTP downloads."""
        files = self._all(lambda name: self._patience().ask(partial(self._hub.file, name, commit)), sorted(names))
        if large := [file for file in files if file.size > LARGEST]:
            raise ValueError(f"{large[0].name} has {amount(large[0].size)}, and the Hub sends no file above "
                             f"{amount(LARGEST)} over HTTP; `hf download {self._order.name}` brings it")
        return files

    def _bring(self, commit: str, files: Sequence[RemoteFile]) -> None:
        """Download files, each content once.

        The largest are first, so that none of them runs alone at the end.
        """
        different = sorted({file.etag: file for file in files}.values(), key=lambda file: -file.size)
        total = sum(file.size for file in different)
        done = sum(self._kept.size_so_far(file.etag, file.size) for file in different)
        self._check_room(total - done)
        if total > done:
            self._meter = Meter(f"downloading {self._order.name}", total, done, self._clock())
            self._screen.begin(self._meter)
        transfer = Transfer(self._hub, self._kept, commit, self._stopped, self._patience, self._say_that_we_wait,
                            self._count)
        self._all(transfer.bring, different)
        self._meter = None

    def _all(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply `work` to all items concurrently and return the results in order. The first failure stops all."""
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            futures = [pool.submit(work, item) for item in items]
            left = set(futures)
            while left:
                ended, left = wait(left, REDRAWN, FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                if self._meter:
                    self._screen.show(self._meter)
            return [future.result() for future in futures]
        except BaseException:
            self._stopped.set()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._screen.clear()

    def _count(self, size: int) -> None:
        with self._counting:
            if self._meter:
                self._meter.done += size

    def _say_that_we_wait(self) -> None:
        """Report waiting for another process, only once, since it affects many files."""
        with self._counting:
            waits, self._waits = self._waits, True
        if not waits:
            self._screen.say(f"another process downloads {self._order.name}; waiting for it")

    def _patience(self) -> Patience:
        return Patience(self._stopped, self._screen.say, self._pauses)

    def _check_room(self, size: int) -> None:
        """Raise NotDownloaded if the disk is too small, before hours are spent on filling it."""
        free = shutil.disk_usage(self._kept.folder).free
        if size > free:
            raise NotDownloaded(
                f"the disk is too small: {amount(size)} are to be downloaded, and {amount(free)} are free where the "
                f"cache is, {self._kept.cache}; make room, or set HF_HOME to a folder on another disk")

    def _unwritten(self, error: OSError) -> NotDownloaded:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            self._check_room(self._meter.total - self._meter.done if self._meter else 0)
        return NotDownloaded(f"cannot write to the cache, {error.filename or self._kept.cache}: {error.strerror}; set "
                             "HF_HOME to a folder that can be written")


def is_needed(name: str) -> bool:
    return name in NEEDED or name.startswith("LICENSE")


def leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def end(voice: Voice, message: str, code: int) -> NoReturn:
    """Report an error and exit at once, without joining threads that wait for the Hub."""
    voice.say(" ".join(message.split()), logging.ERROR)
    os._exit(code)


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    token = sys.stdin.readline().strip()
    threading.Thread(target=leave_with_parent, daemon=True).start()
    voice = Voice(as_json=order.as_json)
    try:
        Download(order, token, Screen(voice.screen(), time.monotonic, quiet=order.quiet), time.monotonic).run()
    except ValueError as error:
        end(voice, str(error), 2)
    except (NotDownloaded, Unreachable) as error:
        end(voice, str(error), 1)
    os._exit(0)


if __name__ == "__main__":
    main()
