"""`weft serve` as a user runs it, with real processes and sockets, and a blocking client."""

import json
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from support.process_list import child_pids, command_line

WEFT = Path(sys.executable).parent / "weft"
PROMPT = "Once upon a time"
SIMULATED = "weft/simulated"


class Weft:
    """A running `weft serve` process and its client."""

    def __init__(self, folder: Path, *arguments: str, command: Sequence[str | Path] = (WEFT,)) -> None:
        self.process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments], cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout
        self.banner = [*until_last_row(self.process.stdout)]
        assert self.banner, self.end()
        self.port = int(self.banner[0].rsplit(":", 1)[-1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, num_tokens: int, prompt: str = PROMPT, **parameters: Any) -> HTTPResponse:
        given = {"inputs": prompt, "parameters": {"max_new_tokens": num_tokens, **parameters}}
        request = Request(self.url + path, json.dumps(given).encode(), {"content-type": "application/json"})
        return urlopen(request)  # type: ignore[no-any-return]

    def generate(self, num_tokens: int, prompt: str = PROMPT) -> str:
        with self.post("/generate", num_tokens, prompt) as response:
            return str(json.load(response)["generated_text"])

    def info(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/info") as response:
            return dict(json.load(response))

    def status(self, path: str, key: str = "") -> int:
        """Return the HTTP status of a GET with this API key."""
        try:
            with urlopen(Request(self.url + path, headers={"Authorization": f"Bearer {key}"})) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code

    def pids(self, module: str) -> list[int]:
        """Return the server's child processes that run this module, in the order of their start."""
        return [pid for pid in child_pids(self.process.pid) if module in command_line(pid)[1:]]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; return its exit code and stderr."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


def until_last_row(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("  stop"):
            return


@contextmanager
def serving(folder: Path, *arguments: str, command: Sequence[str | Path] = (WEFT,)) -> Iterator[Weft]:
    """Run a server with `folder` as working directory; stop it at the end."""
    weft = Weft(folder, *arguments, command=command)
    try:
        yield weft
    finally:
        if weft.process.returncode is None:
            weft.signal(signal.SIGTERM)
            weft.end()


def tokens(response: HTTPResponse) -> Generator[dict[str, Any]]:
    """Yield the events of a stream, one per token; close the response after the last."""
    with response:
        for line in response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
