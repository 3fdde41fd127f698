"""Tests of the logs of `--json-output` and of `text-generation-launcher`, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support.weft_process import SIMULATED, WEFT

pytestmark = pytest.mark.slow

PROGRAM = "from launcher.compat.commands import text_generation_launcher as main; main()"
LAUNCHER = (sys.executable, "-P", "-c", PROGRAM)


class Logged:
    """Server that logs as JSON, and its log so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.told: list[dict[str, Any]] = []

    def until(self, text: str) -> dict[str, Any]:
        """Return the next log object whose message contains `text`."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.told.append(json.loads(line))
            if text in self.told[-1]["message"]:
                return self.told[-1]
        raise AssertionError(self.told)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr
        self.told += [json.loads(line) for line in self.process.stderr]
        return self.process.wait()


@contextmanager
def logging(folder: Path, *command: str | Path, **environment: str) -> Iterator[Logged]:
    process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | environment)
    logged = Logged(process)
    try:
        yield logged
    finally:
        if process.poll() is None:
            logged.end()
        assert process.stdout
        assert process.stdout.read() == ""
        process.stdout.close()
        process.stderr.close()  # type: ignore[union-attr]  # it is a pipe


def test_all_processes_log_objects(tmp_path: Path) -> None:
    command = (WEFT, "serve", SIMULATED, "--port", "0", "--json-output", "--log-level", "debug")
    with logging(tmp_path, *command, WEFT_SIMULATED_FAULTS="die@decode:2") as server:
        url = server.until(f"weft serves {SIMULATED} ")["message"].partition(" at ")[2].split()[0]
        body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 5}}).encode()
        urlopen(Request(f"{url}/generate", body, {"content-type": "application/json"})).close()
        assert server.end() == 0
    warnings = [item for item in server.told if item["level"] == "WARN" and item["process"] == "launcher"]
    assert "starting all shards again" in warnings[0]["message"]
    assert {"launcher", "router"} <= {item["process"] for item in server.told}
    assert all(set(item) >= {"timestamp", "level", "message", "target", "process"} for item in server.told)


def test_a_server_that_cannot_start_says_so_in_an_object(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("[]")
    command = (WEFT, "serve", SIMULATED, "--port", "0", "--json-output", "--api-keys", "keys.json")
    with logging(tmp_path, *command) as server:
        assert server.until("router: keys.json")["level"] == "ERROR"
        assert server.process.wait() == 2  # to start it again would not help


def test_the_launcher_of_text_generation_inference_serves(tmp_path: Path) -> None:
    environment = {"MODEL_ID": SIMULATED, "PORT": "0", "HOSTNAME": "4f2d9a1c", "JSON_OUTPUT": "true"}
    with logging(tmp_path, *LAUNCHER, "--max-best-of", "3", **environment) as server:
        message = server.until(f"weft serves {SIMULATED} ")["message"]
        url = message.partition(" at ")[2].split()[0]
        assert url.startswith("http://0.0.0.0:")
        with urlopen(f"{url.replace('0.0.0.0', '127.0.0.1')}/info") as answer:
            assert json.load(answer)["max_best_of"] == 3
            assert answer.headers.get("Access-Control-Allow-Origin") == "*"
        assert server.end() == 0
    assert server.told[0]["message"].startswith("HOSTNAME is no address (4f2d9a1c)")
