"""Fake Hugging Face Hub on localhost: one model, the routes that Hub clients use, and faults on demand.

    with FakeHub(FILES) as hub:
        hub.url                                        the value for HF_ENDPOINT
        hub.scripted_answers.append(503)               statuses of the next requests, one each
        hub.cut_after_bytes["model.safetensors"] = 9   the connection closes after 9 bytes of this file, once
        hub.received_requests                          method, path, range, token of each

As on the real Hub, large files come from another origin: `localhost` instead of `127.0.0.1`.
"""

import hashlib
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL_NAME = "org/name"


class ReceivedRequest(NamedTuple):
    method: str
    path: str
    range: str  # the Range header
    token: str
    user_agent: str


class FakeHub:
    def __init__(self, files: dict[str, bytes], commit: str = COMMIT) -> None:
        self.files, self.refs = files, {"main": commit, commit: commit}
        self.scripted_answers: deque[int | tuple[int, dict[str, str]]] = deque()  # status, or status and headers
        self.cut_after_bytes: dict[str, int] = {}
        # as `cut_after_bytes`, but the connection stays open without further data
        self.stall_after_bytes: dict[str, int] = {}
        self.corrupted_files: set[str] = set()  # files that are served with one bit flipped
        self.supports_ranges = True
        self.gated_token = ""  # only this token may read files
        self.private_token = ""  # without this token the model does not exist
        self.received_requests: list[ReceivedRequest] = []
        self.stall_started, self.is_stopping = threading.Event(), threading.Event()

    def __enter__(self) -> "FakeHub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Question", (HubRequestHandler,), {"hub": self}))
        self._server.daemon_threads = False  # `server_close` waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.is_stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def storage_url(self) -> str:
        return f"http://localhost:{self._server.server_port}/store"

    def compute_etag(self, name: str) -> str:
        content = self.files[name]
        if is_large(name):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def count_requests(self, *words: str) -> int:
        return sum(all(word in " ".join(request) for word in words) for request in self.received_requests)


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


class HubRequestHandler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = self.headers
        self.hub.received_requests.append(ReceivedRequest(self.command, self.path, headers.get("Range", ""),
                                                          headers.get("Authorization", ""),
                                                          headers.get("User-Agent", "")))
        path = unquote(self.path.split("?")[0])
        if self.hub.scripted_answers:
            answer = self.hub.scripted_answers.popleft()
            self.send_answer(*(answer if isinstance(answer, tuple) else (answer, {})))
        elif (self.hub.private_token and headers.get("Authorization") != f"Bearer {self.hub.private_token}"
              and (not path.startswith("/store/"))):
            self.send_answer(404 if headers.get("Authorization") else 401, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/store/"):
            self.send_file(path.removeprefix("/store/"))
        elif path.startswith("/cached/"):
            self.send_file(path.removeprefix("/cached/"), **self.make_file_headers(path.removeprefix("/cached/")))
        elif path.startswith(f"/api/models/{MODEL_NAME}/"):
            self.send_model_info(*path.removeprefix(f"/api/models/{MODEL_NAME}/").split("/", 1))
        elif path.startswith(f"/{MODEL_NAME}/resolve/"):
            self.send_redirect(*path.removeprefix(f"/{MODEL_NAME}/resolve/").split("/", 1))
        else:
            self.send_answer(401, {"X-Error-Code": "RepoNotFound"})

    def send_model_info(self, endpoint: str, revision: str) -> None:
        commit = self.hub.refs.get(revision)
        if commit is None:
            self.send_answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif endpoint == "revision":
            self.send_answer(200, {},
                             json.dumps({"id": MODEL_NAME, "sha": commit,
                                         "siblings": [{"rfilename": name} for name in self.hub.files]}).encode())
        else:
            self.send_answer(200, {"Content-Type": "application/json"}, json.dumps([
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.hub.files.items()]).encode())

    def send_redirect(self, revision: str, name: str) -> None:
        if self.hub.gated_token and self.headers.get("Authorization") != f"Bearer {self.hub.gated_token}":
            self.send_answer(403 if self.headers.get("Authorization") else 401, {"X-Error-Code": "GatedRepo"})
        elif name not in self.hub.files:
            self.send_answer(404, {"X-Error-Code": "EntryNotFound"})
        elif is_large(name):
            linked = {"X-Linked-ETag": f'"{self.hub.compute_etag(name)}"',
                      "X-Linked-Size": str(len(self.hub.files[name]))}
            self.send_answer(302,
                             {"Location": f"{self.hub.storage_url}/{name}", **self.make_file_headers(name), **linked})
        else:
            self.send_answer(307, {"Location": f"/cached/{name}"})

    def make_file_headers(self, name: str) -> dict[str, str]:
        return {"X-Repo-Commit": self.hub.refs["main"], "ETag": f'"{self.hub.compute_etag(name)}"'}

    def send_file(self, name: str, **headers: str) -> None:
        content = self.hub.files[name]
        if name in self.hub.corrupted_files:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int(self.headers.get("Range", "bytes=0-")[6:-1]) if self.hub.supports_ranges else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(content) - start)
        if self.command == "GET" and (cut_after := self.hub.cut_after_bytes.pop(name, None)) is not None:
            content = content[:start + cut_after]
        stall_after = self.hub.stall_after_bytes.pop(name, None) if self.command == "GET" else None
        self.send_answer(206 if start else 200, headers, content[start:][:stall_after])
        if stall_after is not None:
            self.hub.stall_started.set()
            self.hub.is_stopping.wait()

    def send_answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Log nothing: tests read `received_requests`."""
