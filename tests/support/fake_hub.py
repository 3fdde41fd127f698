"""Fake Hugging Face Hub on localhost: one model, the routes that Hub clients use, and faults on demand.

    with FakeHub(FILES) as hub:
        hub.url                             the value for HF_ENDPOINT
        hub.answers.append(503)             statuses of the next requests, one each
        hub.cuts["model.safetensors"] = 9   the connection closes after 9 bytes of this file, once
        hub.asked                           received requests: method, path, range, token

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
NAME = "org/name"


class Asked(NamedTuple):
    method: str
    path: str
    bytes: str  # the Range header
    token: str
    client: str


class FakeHub:
    def __init__(self, files: dict[str, bytes], commit: str = COMMIT) -> None:
        self.files, self.refs = files, {"main": commit, commit: commit}
        self.answers: deque[int | tuple[int, dict[str, str]]] = deque()  # status, or status and headers
        self.cuts: dict[str, int] = {}
        self.stalls: dict[str, int] = {}  # as `cuts`, but the connection stays open without further data
        self.damaged: set[str] = set()  # files that are served with one bit flipped
        self.ranges = True
        self.gated_for = ""  # only this token may read files
        self.private_for = ""  # without this token the model does not exist
        self.asked: list[Asked] = []
        self.stalled, self.over = threading.Event(), threading.Event()

    def __enter__(self) -> "FakeHub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Question", (Question,), {"hub": self}))
        self._server.daemon_threads = False  # `server_close` waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def store(self) -> str:
        return f"http://localhost:{self._server.server_port}/store"

    def etag(self, name: str) -> str:
        content = self.files[name]
        if is_large(name):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def num_asked(self, *words: str) -> int:
        return sum(all(word in " ".join(asked) for word in words) for asked in self.asked)


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


class Question(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = self.headers
        self.hub.asked.append(Asked(self.command, self.path, headers.get("Range", ""), headers.get("Authorization", ""),
                                    headers.get("User-Agent", "")))
        path = unquote(self.path.split("?")[0])
        if self.hub.answers:
            answer = self.hub.answers.popleft()
            self.answer(*(answer if isinstance(answer, tuple) else (answer, {})))
        elif self.hub.private_for and headers.get("Authorization") != f"Bearer {self.hub.private_for}" and (
                not path.startswith("/store/")):
            self.answer(404 if headers.get("Authorization") else 401, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/store/"):
            self.send_file(path.removeprefix("/store/"))
        elif path.startswith("/cached/"):
            self.send_file(path.removeprefix("/cached/"), **self.about(path.removeprefix("/cached/")))
        elif path.startswith(f"/api/models/{NAME}/"):
            self.tell(*path.removeprefix(f"/api/models/{NAME}/").split("/", 1))
        elif path.startswith(f"/{NAME}/resolve/"):
            self.resolve(*path.removeprefix(f"/{NAME}/resolve/").split("/", 1))
        else:
            self.answer(401, {"X-Error-Code": "RepoNotFound"})

    def tell(self, what: str, revision: str) -> None:
        commit = self.hub.refs.get(revision)
        if commit is None:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        elif what == "revision":
            self.answer(200, {}, json.dumps({
                "id": NAME, "sha": commit, "siblings": [{"rfilename": name} for name in self.hub.files]}).encode())
        else:
            self.answer(200, {"Content-Type": "application/json"}, json.dumps([
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in self.hub.files.items()]).encode())

    def resolve(self, revision: str, name: str) -> None:
        if self.hub.gated_for and self.headers.get("Authorization") != f"Bearer {self.hub.gated_for}":
            self.answer(403 if self.headers.get("Authorization") else 401, {"X-Error-Code": "GatedRepo"})
        elif name not in self.hub.files:
            self.answer(404, {"X-Error-Code": "EntryNotFound"})
        elif is_large(name):
            linked = {"X-Linked-ETag": f'"{self.hub.etag(name)}"', "X-Linked-Size": str(len(self.hub.files[name]))}
            self.answer(302, {"Location": f"{self.hub.store}/{name}", **self.about(name), **linked})
        else:
            self.answer(307, {"Location": f"/cached/{name}"})

    def about(self, name: str) -> dict[str, str]:
        return {"X-Repo-Commit": self.hub.refs["main"], "ETag": f'"{self.hub.etag(name)}"'}

    def send_file(self, name: str, **headers: str) -> None:
        content = self.hub.files[name]
        if name in self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int(self.headers.get("Range", "bytes=0-")[6:-1]) if self.hub.ranges else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(content) - start)
        if self.command == "GET" and (cut := self.hub.cuts.pop(name, None)) is not None:
            content = content[:start + cut]
        stall = self.hub.stalls.pop(name, None) if self.command == "GET" else None
        self.answer(206 if start else 200, headers, content[start:][:stall])
        if stall is not None:
            self.hub.stalled.set()
            self.hub.over.wait()

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Log nothing: tests read `asked`."""
