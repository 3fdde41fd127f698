"""`weft serve` as a user runs it, with real processes and sockets, and a blocking client."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from support.process_list import list_child_pids, read_command_line

WEFT_EXECUTABLE = Path(sys.executable).parent / "weft"
DEFAULT_PROMPT = "Once upon a time"
IDLE_TIMEOUT_SECONDS = 10.0
IDLE_METRICS = ('tgi_cache_blocks{state="held"}', "tgi_batch_current_size", "tgi_queue_size", "tgi_request_current")
SIMULATED_MODEL = "weft/simulated"


RUNNING_SERVERS: list["WeftProcess"] = []  # those of `run_weft_process`


class WeftProcess:
    """A running `weft serve` process and its client."""

    def __init__(self, folder: Path, *arguments: str, command: Sequence[str | Path] = (WEFT_EXECUTABLE,),
                 port: int = 0) -> None:
        self.process = subprocess.Popen(
            [*command, "serve", "--port", str(port), *arguments], cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout
        self.banner = [*iter_banner_lines(self.process.stdout)]
        assert self.banner, self.wait_for_exit()
        self.port = int(self.banner[0].rsplit(":", 1)[-1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post_prompt(self, path: str, num_tokens: int, prompt: str = DEFAULT_PROMPT, **parameters: Any) -> HTTPResponse:
        body = {"inputs": prompt, "parameters": {"max_new_tokens": num_tokens, **parameters}}
        request = Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        return urlopen(request)  # type: ignore[no-any-return]

    def generate(self, num_tokens: int, prompt: str = DEFAULT_PROMPT) -> str:
        with self.post_prompt("/generate", num_tokens, prompt) as response:
            return str(json.load(response)["generated_text"])

    def get_info(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/info") as response:
            return dict(json.load(response))

    def get_status(self, path: str, api_key: str = "") -> int:
        """Return the HTTP status of a GET with this API key."""
        try:
            with urlopen(Request(self.url + path, headers={"Authorization": f"Bearer {api_key}"})) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code

    def wait_until_idle(self) -> list[str]:
        """Wait until no request, sequence or block is held; return the gauges that are not 0 after some seconds. A
        server that does not answer, since it ends or its router was killed, has none."""
        end, held = time.monotonic() + IDLE_TIMEOUT_SECONDS, [""]
        while held and time.monotonic() < end:
            try:
                with urlopen(f"{self.url}/metrics", timeout=1.0) as response:
                    held = find_held_resources(response.read().decode())
            except OSError:
                return []
        return held

    def find_child_pids(self, module: str) -> list[int]:
        """Return the server's child processes that run this module, in the order of their start."""
        return [pid for pid in list_child_pids(self.process.pid) if module in read_command_line(pid)[1:]]

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for_exit(self) -> tuple[int, str]:
        """Wait for the process to end; return its exit code and stderr."""
        _, errors = self.process.communicate()
        return self.process.returncode, errors


def find_held_resources(metrics_page: str) -> list[str]:
    """Return the gauges of blocks, sequences and requests that are not 0."""
    return [line for line in metrics_page.splitlines() if line.startswith(IDLE_METRICS) and float(line.split()[-1])]


def iter_banner_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("  stop"):
            return


@contextmanager
def run_weft_process(folder: Path, *arguments: str, command: Sequence[str | Path] = (WEFT_EXECUTABLE,),
                     port: int = 0) -> Iterator[WeftProcess]:
    """Run a server with `folder` as working directory; stop it at the end."""
    server = WeftProcess(folder, *arguments, command=command, port=port)
    RUNNING_SERVERS.append(server)
    try:
        yield server
    finally:
        RUNNING_SERVERS.remove(server)
        if server.process.returncode is None:
            server.send_signal(signal.SIGTERM)
            server.wait_for_exit()


def iter_stream_events(response: HTTPResponse) -> Generator[dict[str, Any]]:
    """Yield the events of a stream, one per token; close the response after the last."""
    with response:
        for line in response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
