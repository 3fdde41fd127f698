"""Merges of adapters: each is computed once, by a child process, one at a time, and stored like any other version.

The digest of a result is written to the store, so that it is found after a restart.
"""

import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from launcher.adapters.contents import FILES
from launcher.adapters.errors import Refused, understood
from launcher.adapters.protocol import DIGEST, Merge
from launcher.adapters.store import Incoming, Store, Version
from launcher.hub.cache import put

MOST_SECONDS = 600.0  # per merge
MOST_TOLD = 300  # maximum characters of the child's error


class Merging:
    """Runner of merges. `close` kills the running one and cancels the others."""

    def __init__(self, store: Store, command: Sequence[str]) -> None:
        self._store, self._command = store, command
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="merging")
        self._starting = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self, asked: Merge) -> "Future[Version]":
        """Return a future of the merged version, or of Refused."""
        return self._thread.submit(self._merge, asked)

    def kill(self) -> None:
        """Kill the merging process and let no other start. Thread-safe."""
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
        """Run the child, which inherits the lock of the folder.

        If this process is killed, no other process clears the folder while the child still writes to it.
        """
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
    """Wait for the child to end and return the last line of its stderr, or why there is none."""
    try:
        said = child.communicate(timeout=MOST_SECONDS)[1]
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"that takes more than {MOST_SECONDS:g} seconds"
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:MOST_TOLD] if lines else f"exit code {child.returncode}"
