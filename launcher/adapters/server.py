"""Adapter store as a process: `python -P -m launcher.adapters.server JSON`, where JSON is a `Settings` object.

The first line of standard input is the server's own token for the Hub, or empty. Each later line is a request
(launcher/adapters/protocol.py); its reply is a line on standard output with the same id, and replies come in any order.
The end of standard input ends the process, even while fetches run. Secrets are only passed on standard input.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from launcher.adapters.errors import Refused, called, understood
from launcher.adapters.fetch import Fetched, Fetching
from launcher.adapters.merge import Merging
from launcher.adapters.protocol import Allowed, Fetch, Id, Merge, Order, Pin, described, read_id, read_order
from launcher.adapters.sources import bucket
from launcher.adapters.sources.hub import HubSettings, HubSource
from launcher.adapters.sources.local import LocalSource
from launcher.adapters.sources.s3 import S3Source
from launcher.adapters.store import Store, Version
from launcher.output import PLAIN
from launcher.supervisor.plan import python_module

MERGE = python_module("shard.adapters.merge_command")
QUESTIONS_AT_ONCE = 8  # maximum concurrent checks whether a token may read an adapter
NICENESS = 10  # steps of the model have priority, also where the shards use every core

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    store: str
    root: str  # root folder of the source `local`, or "" if that source is disabled
    most_bytes: int
    endpoint: str
    client: str  # the User-Agent for the Hub
    offline: str  # name of the variable that forbids connections to the Hub, or ""
    hub_cache: str


class Parts(NamedTuple):
    """Components that handle the requests."""

    store: Store
    hub: HubSource
    fetching: Fetching
    merging: Merging


class Desk:
    """Dispatcher of requests, which sends each reply when it is ready. `close` ends merges and waits for other work."""

    def __init__(self, parts: Parts, say: Callable[[Answer], None]) -> None:
        self._parts, self._say = parts, say
        self._questions = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="questions")
        self._pins = ThreadPoolExecutor(1, thread_name_prefix="pins")  # one thread: pins apply in order of arrival

    def hear(self, line: bytes) -> None:
        number: Id = None
        try:
            with understood("what was asked for"):
                number, told = read_id(line)
                self._begin(number, read_order(told))
        except Refused as refused:
            self._say({"id": number, **failure(refused)})

    def close(self) -> None:
        self._parts.merging.close()
        self._parts.fetching.close()
        self._questions.shutdown()
        self._pins.shutdown()
        self._parts.store.close()

    def _begin(self, number: Id, order: Order) -> None:
        match order:
            case Fetch():
                self._promise(number, self._parts.fetching.start(order), fetched)
            case Merge():
                self._promise(number, self._parts.merging.start(order), merged)
            case Allowed():
                self._promise(number, self._questions.submit(self._allowed, order), dict)
            case Pin():
                self._promise(number, self._pins.submit(self._pin, order), dict)

    def _promise(self, number: Id, future: "Future[Any]", answer: Callable[[Any], Answer]) -> None:
        future.add_done_callback(lambda done: self._say({"id": number, **said(done, answer)}))

    def _allowed(self, asked: Allowed) -> Answer:
        """Reply that access is allowed. Raises Refused if not; only the source `hub` uses tokens."""
        if asked.source == "hub":
            with understood(f"the adapter {called(asked.name)}"):
                self._parts.hub.check_allowed(asked)
        return {"allowed": True}

    def _pin(self, asked: Pin) -> Answer:
        """Replace the pins and reply with the digests that are no longer stored and must be fetched again."""
        with understood("what is in use"):
            missing = self._parts.store.pin(asked.digests)
        return {"missing": missing} if missing else {}


def said(done: "Future[Any]", answer: Callable[[Any], Answer]) -> Answer:
    try:
        with understood("what was asked for"):
            return answer(done.result())
    except Refused as refused:
        return failure(refused)


def failure(refused: Refused) -> Answer:
    return {"error": str(refused), "kind": refused.kind}


def fetched(found: Fetched) -> Answer:
    return described(found.version, private=found.private)


def merged(version: Version) -> Answer:
    """Return the reply to a merge, never marked as private: access to its parts decides about access to it."""
    return described(version, private=False)


class Mouth:
    """Thread-safe writer of reply lines. Ends the process if the reader has closed the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, answer: Answer) -> None:
        left = memoryview(json.dumps(answer).encode() + b"\n")
        with self._lock:
            try:
                while left:
                    left = left[os.write(self._descriptor, left):]
            except BrokenPipeError:
                os._exit(1)


def make_parts(settings: Settings, token: str, environment: Mapping[str, str]) -> Parts:
    store = Store(Path(settings.store), settings.most_bytes)
    hub = HubSource(HubSettings(settings.endpoint, settings.client, settings.offline, store.folder / "hub",
                              Path(settings.hub_cache), token))
    s3 = S3Source(partial(bucket.connect, environment), environment)
    fetching = Fetching(store, {"hub": hub, "local": LocalSource(settings.root), "s3": s3})
    return Parts(store, hub, fetching, Merging(store, MERGE))


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="weft: %(message)s")
    os.nice(NICENESS)
    settings = Settings(**json.loads(sys.argv[1]))
    token = sys.stdin.buffer.readline().decode().strip()
    try:
        parts = make_parts(settings, token, os.environ)
    except OSError as error:
        PLAIN.say(f"cannot keep adapters in {settings.store}: {error.strerror}", logging.ERROR)
        raise SystemExit(1) from None
    desk = Desk(parts, Mouth(sys.stdout.fileno()).say)
    for line in sys.stdin.buffer:
        desk.hear(line)
    parts.merging.kill()
    os._exit(0)  # without waiting for downloads: the next process resumes them


if __name__ == "__main__":
    main()
