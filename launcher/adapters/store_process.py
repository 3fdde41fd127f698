"""Adapter store as a process: `python -P -m launcher.adapters.store_process JSON`, where JSON is an
`AdapterStoreSettings` object.

The first line of standard input is the server's own token for the Hub, or empty. Each later line is a request
(launcher/adapters/store_protocol.py); its reply is a line on standard output with the same id, and replies come in any
order. The end of standard input ends the process, even while fetches run. Secrets are only passed on standard input.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from launcher.adapters.allow_list import AdapterAllowList
from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error, quote_name
from launcher.adapters.fetch import AdapterFetcher, FetchedAdapter
from launcher.adapters.merge_runner import AdapterMergeRunner
from launcher.adapters.sources import boto3_storage
from launcher.adapters.sources.hub import HubSource, HubSourceSettings
from launcher.adapters.sources.local import LocalSource
from launcher.adapters.sources.s3 import S3Source
from launcher.adapters.store import AdapterVersion, AdapterVersionStore
from launcher.adapters.store_protocol import (
    AccessCheckRequest,
    FetchRequest,
    ListNamesRequest,
    MergeRequest,
    PingRequest,
    ReplacePinsRequest,
    RequestId,
    StoreRequest,
    make_adapter_version_reply,
    parse_request,
    parse_request_line,
)
from launcher.console_output import PLAIN_OUTPUT
from launcher.environment_variables import python_module_command

MERGE_COMMAND = python_module_command("shard.adapters.merge_adapters_command")
MAX_CONCURRENT_ACCESS_CHECKS = 8  # maximum concurrent checks whether a token may read an adapter
PROCESS_NICENESS = 10  # steps of the model have priority, also where the shards use every core

Reply = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdapterStoreSettings:
    """Settings of the store's process, as its command line has them; the token comes by standard input."""

    store_folder: str
    local_root: str  # root folder of the source `local`, or "" if that source is disabled
    max_bytes: int
    endpoint: str
    user_agent: str  # the User-Agent for the Hub
    offline_variable: str  # name of the variable that forbids connections to the Hub, or ""
    hub_cache: str
    allowed_adapters: Sequence[str] = ()  # entries of AdapterAllowList; none means its default


class StoreComponents(NamedTuple):
    """Parts of the store that answer requests: the folder, two of the sources, the fetcher and the runner of merges."""

    store: AdapterVersionStore
    hub_source: HubSource
    local_source: LocalSource
    fetcher: AdapterFetcher
    merger: AdapterMergeRunner


class StoreRequestDispatcher:
    """Dispatcher of requests, which sends each reply when it is ready. `close` ends merges and waits for other work."""

    def __init__(self, components: StoreComponents, send_reply: Callable[[Reply], None]) -> None:
        self._components, self._send_reply = components, send_reply
        self._access_check_executor = ThreadPoolExecutor(MAX_CONCURRENT_ACCESS_CHECKS, thread_name_prefix="questions")
        # one thread: pins apply in order of arrival
        self._pin_executor = ThreadPoolExecutor(1, thread_name_prefix="pins")

    def handle_request_line(self, line: bytes) -> None:
        request_id: RequestId = None
        try:
            with convert_errors_to_adapter_error("what was asked for"):
                request_id, fields = parse_request_line(line)
                self._start_request(request_id, parse_request(fields))
        except AdapterError as refused:
            self._send_reply({"id": request_id, **make_error_reply(refused)})

    def close(self) -> None:
        self._components.merger.close()
        self._components.fetcher.close()
        self._access_check_executor.shutdown()
        self._pin_executor.shutdown()
        self._components.store.close()

    def _start_request(self, request_id: RequestId, request: StoreRequest) -> None:
        match request:
            case FetchRequest():
                self._reply_when_done(request_id, self._components.fetcher.start_fetch(request), make_fetch_reply)
            case MergeRequest():
                self._reply_when_done(request_id, self._components.merger.start_merge(request), make_merge_reply)
            case AccessCheckRequest():
                self._reply_when_done(request_id,
                                      self._access_check_executor.submit(self._handle_access_check, request), dict)
            case ListNamesRequest():
                self._reply_when_done(request_id, self._access_check_executor.submit(self._list_local_names), dict)
            case ReplacePinsRequest():
                self._reply_when_done(request_id, self._pin_executor.submit(self._replace_pins, request), dict)
            case PingRequest():
                self._send_reply({"id": request_id})

    def _reply_when_done(self, request_id: RequestId, future: "Future[Any]",
                         make_reply: Callable[[Any], Reply]) -> None:
        future.add_done_callback(lambda finished_future: self._send_reply(
            {"id": request_id, **make_reply_or_error(finished_future, make_reply)}))

    def _handle_access_check(self, request: AccessCheckRequest) -> Reply:
        """Reply that access is allowed. Raises AdapterError if not; only the source `hub` uses tokens."""
        if request.source == "hub":
            with convert_errors_to_adapter_error(f"the adapter {quote_name(request.name)}"):
                self._components.hub_source.check_access(request)
        return {"allowed": True}

    def _list_local_names(self) -> Reply:
        with convert_errors_to_adapter_error("the folder of --adapter-root"):
            names = self._components.local_source.list_names()
        return {"names": self._components.fetcher.list_allowed_names("local", names)}

    def _replace_pins(self, request: ReplacePinsRequest) -> Reply:
        """Replace the pins and reply with the digests that are no longer stored and must be fetched again."""
        with convert_errors_to_adapter_error("what is in use"):
            missing = self._components.store.replace_pins(request.digests)
        return {"missing": missing} if missing else {}


def make_reply_or_error(future: "Future[Any]", make_reply: Callable[[Any], Reply]) -> Reply:
    try:
        with convert_errors_to_adapter_error("what was asked for"):
            return make_reply(future.result())
    except AdapterError as refused:
        return make_error_reply(refused)


def make_error_reply(error: AdapterError) -> Reply:
    return {"error": str(error), "kind": error.kind}


def make_fetch_reply(adapter: FetchedAdapter) -> Reply:
    return make_adapter_version_reply(adapter.version, is_private=adapter.is_private)


def make_merge_reply(version: AdapterVersion) -> Reply:
    """Return the reply to a merge, never marked as private: access to its parts decides about access to it."""
    return make_adapter_version_reply(version, is_private=False)


class ReplyPipeWriter:
    """Thread-safe writer of replies, one line of JSON each, to the pipe that the router reads. Ends the process if the
    router has closed it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write_reply(self, reply: Reply) -> None:
        unwritten = memoryview(json.dumps(reply).encode() + b"\n")
        with self._lock:
            try:
                while unwritten:
                    unwritten = unwritten[os.write(self._descriptor, unwritten):]
            except BrokenPipeError:
                os._exit(1)


def make_store_components(settings: AdapterStoreSettings, server_token: str,
                          environment: Mapping[str, str]) -> StoreComponents:
    store = AdapterVersionStore(Path(settings.store_folder), settings.max_bytes)
    hub = HubSource(HubSourceSettings(settings.endpoint, settings.user_agent, settings.offline_variable,
                                      store.folder / "hub", Path(settings.hub_cache), server_token))
    s3 = S3Source(partial(boto3_storage.connect_to_s3, environment), environment)
    local = LocalSource(settings.local_root)
    fetching = AdapterFetcher(store, {"hub": hub, "local": local, "s3": s3},
                              AdapterAllowList(settings.allowed_adapters, environment))
    return StoreComponents(store, hub, local, fetching, AdapterMergeRunner(store, MERGE_COMMAND))


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="weft: %(message)s")
    os.nice(PROCESS_NICENESS)
    settings = AdapterStoreSettings(**json.loads(sys.argv[1]))
    token = sys.stdin.buffer.readline().decode().strip()
    try:
        components = make_store_components(settings, token, os.environ)
    except OSError as error:
        PLAIN_OUTPUT.log(f"cannot keep adapters in {settings.store_folder}: {error.strerror}", logging.ERROR)
        raise SystemExit(1) from None
    dispatcher = StoreRequestDispatcher(components, ReplyPipeWriter(sys.stdout.fileno()).write_reply)
    for line in sys.stdin.buffer:
        dispatcher.handle_request_line(line)
    components.merger.kill_and_refuse_merges()
    os._exit(0)  # without waiting for downloads: the next process resumes them


if __name__ == "__main__":
    main()
