"""Client of the store through which ranks on several hosts find each other: the launcher of the first host keeps it
(launcher/hosts/rendezvous_store.py). Each rank connects with TLS and the secret, and unpickles nothing that it reads.

A store belongs to one start of the shards. When that ends, the launcher closes the connections, and a rank that waits
gets an error.
"""

# ruff: noqa: N802 - of a store in Python, torch calls methods by their names in C++
import json
import socket
import ssl
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from threading import Lock
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # not in its list

from shard.errors import PeerLost
from shard.tls_credentials import TLS_NAME, ShardTlsCredentials


class RendezvousClient(Store):
    """Client of the store, as torch.distributed uses it: keys are texts and values bytes."""

    def __init__(self, meeting_point: str, credentials: ShardTlsCredentials, timeout: timedelta) -> None:
        """Connect to the store of the meeting point `HOST:PORT/NAME`. `timeout` is for every wait for another rank."""
        super().__init__()
        self._arguments = meeting_point, credentials, timeout
        self._clones: list[RendezvousClient] = []  # which torch keeps without their Python parts
        address, _, name = meeting_point.partition("/")
        host, _, port = address.rpartition(":")
        self._timeout = timeout
        self._lock = Lock()  # the threads of NCCL call this, too
        try:
            connection = socket.create_connection((host.strip("[]"), int(port)), timeout.total_seconds())
            self._socket = credentials.make_client_context().wrap_socket(connection, server_hostname=TLS_NAME)
        except OSError as error:
            raise PeerLost(f"cannot reach the first host's launcher at {address}: {error}") from error
        self._reader = self._socket.makefile("rb")
        self._send({"secret": credentials.secret, "store": name})

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._call({"set": key, "value": b64encode(data).decode()})

    def get(self, key: str) -> bytes:
        return b64decode(self._call({"get": key}))

    def add(self, key: str, amount: int) -> int:
        return int(self._call({"add": key, "amount": amount}))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._call({"check": list(keys)}))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._call({"wait": list(keys)}, timeout or self._timeout)

    def deleteKey(self, key: str) -> bool:
        return bool(self._call({"delete": key}))

    def getNumKeys(self) -> int:
        return int(self._call({"count": True}))

    def clone(self) -> "RendezvousClient":
        """Return a store of the same values with a connection of its own."""
        self._clones.append(RendezvousClient(*self._arguments))
        return self._clones[-1]

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def close(self) -> None:
        for clone in self._clones:
            clone.close()
        self._reader.close()
        self._socket.close()

    def _call(self, request: dict[str, Any], timeout: timedelta | None = None) -> Any:
        """Send a request and return its result. Raises PeerLost if the start has ended or another rank is not there in
        time."""
        with self._lock:
            try:
                self._socket.settimeout((timeout or self._timeout).total_seconds())
                self._send(request)
                answer = self._reader.readline()
            except TimeoutError:
                raise PeerLost("another rank did not come in time") from None
            except (OSError, ssl.SSLError) as error:
                raise PeerLost(f"the group of hosts is gone: {error}") from error
        if not answer:
            raise PeerLost("the group of hosts is gone")
        content = json.loads(answer)
        if "result" not in content:
            raise PeerLost(f"the first host's launcher refused this rank: {content.get('refused')}")
        return content["result"]

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")
