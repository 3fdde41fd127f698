"""Merges of adapters, each made once by a process of its own, one at a time, and kept as any other version.

What came of one is written down in the store, so that it is known after a restart. Knows not how adapters are merged.
"""

import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from launcher.adapters.contents import FILES
from launcher.adapters.orders import DIGEST, Merge
from launcher.adapters.refused import Refused, understood
from launcher.adapters.store import Incoming, Store, Version
from launcher.cache import put

MOST_SECONDS = 600.0  # for one
MOST_TOLD = 300  # characters of its reason


class Merging:
    """Close it to end what is under way."""

    def __init__(self, store: Store, command: Sequence[str]) -> None:
        self._store, self._command = store, command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="merging")
        self._starting = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self, asked: Merge) -> "Future[Version]":
        """Its result, or Refused."""
        return self._thread.submit(self._merge, asked)

    def kill(self) -> None:
        """The process that merges. From any thread; none is started any more."""
        with self._starting:
            self._closed = True
            if self._child:
                self._child.kill()

    def close(self) -> None:
        self.kill()
        self._thread.shutdown(cancel_futures=True)

    # -- in the thread

    def _merge(self, asked: Merge) -> Version:
        with understood("the merged adapter"):
            return self._made_before(asked) or self._make(asked)

    def _made_before(self, asked: Merge) -> Version | None:
        note = self._note(asked)
        digest = note.read_text() if note.is_file() else ""
        return self._store.find(digest) if DIGEST.fullmatch(digest) else None

    def _make(self, asked: Merge) -> Version:
        with self._store.holding(asked.digests), self._store.incoming() as incoming:
            parts = [self._part(digest) for digest in asked.digests]
            self._store.check_room(max(part.contents.bytes for part in parts))
            self._run(order(asked, parts, incoming.folder), incoming)
            if lost := [name for name in FILES if not (incoming.folder / name).is_file()]:
                raise Refused("invalid", f"the adapters could not be merged: no {lost[0]} came of it")
            version = self._store.publish(incoming.folder)
        put(self._note(asked), lambda path: path.write_text(version.digest))
        return version

    def _part(self, digest: str) -> Version:
        if (found := self._store.find(digest)) is None:
            raise Refused("missing", f"there is no version {digest} any more; fetch it again")
        return found

    def _run(self, argument: str, incoming: Incoming) -> None:
        """The process holds the folder as well: if we are killed nobody clears it while it writes there."""
        with self._starting:
            if self._closed:
                raise Refused("unreachable", "the server is stopping")
            self._child = child = subprocess.Popen(
                [*self._command, argument], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=(incoming.descriptor,))
        with child:
            said = wait(child)
        if child.returncode:
            raise Refused("invalid", f"the adapters could not be merged: {said}")

    def _note(self, asked: Merge) -> Path:
        return self._store.folder / "merged" / asked.key


def order(asked: Merge, parts: Sequence[Version], into: Path) -> str:
    return json.dumps({
        "folders": [str(part.folder) for part in parts], "weights": asked.weights, "strategy": asked.strategy,
        "density": asked.density, "sign": asked.sign, "seed": asked.seed, "into": str(into)})


def wait(child: "subprocess.Popen[bytes]") -> str:
    """For its end. What it said last."""
    try:
        said = child.communicate(timeout=MOST_SECONDS)[1]
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"that takes more than {MOST_SECONDS:g} seconds"
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:MOST_TOLD] if lines else f"exit code {child.returncode}"
