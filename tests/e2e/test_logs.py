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
from support.servers.weft_process import SIMULATED_MODEL, WEFT_EXECUTABLE

pytestmark = pytest.mark.slow

TGI_LAUNCHER_PROGRAM = "from launcher.compat_commands import text_generation_launcher as main; main()"
TGI_LAUNCHER_COMMAND = (sys.executable, "-P", "-c", TGI_LAUNCHER_PROGRAM)


class JsonLoggingServer:
    """Server that logs as JSON, and its log so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.log_entries: list[dict[str, Any]] = []

    def wait_for_message(self, text: str) -> dict[str, Any]:
        """Return the next log object whose message contains `text`."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.log_entries.append(json.loads(line))
            if text in self.log_entries[-1]["message"]:
                return self.log_entries[-1]
        raise AssertionError(self.log_entries)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr
        self.log_entries += [json.loads(line) for line in self.process.stderr]
        return self.process.wait()


@contextmanager
def run_json_logging_server(folder: Path, *command: str | Path, **environment: str) -> Iterator[JsonLoggingServer]:
    process = subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | environment)
    server = JsonLoggingServer(process)
    try:
        yield server
    finally:
        if process.poll() is None:
            server.stop()
        assert process.stdout
        assert process.stdout.read() == ""
        process.stdout.close()
        process.stderr.close()  # type: ignore[union-attr]  # it is a pipe


def test_all_processes_log_json_objects(tmp_path: Path) -> None:
    command = (WEFT_EXECUTABLE, "serve", SIMULATED_MODEL, "--port", "0", "--json-output", "--log-level", "debug")
    with run_json_logging_server(tmp_path, *command, WEFT_SIMULATED_FAULTS="die@decode:2") as server:
        url = server.wait_for_message(f"weft serves {SIMULATED_MODEL} ")["message"].partition(" at ")[2].split()[0]
        body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 5}}).encode()
        urlopen(Request(f"{url}/generate", body, {"content-type": "application/json"})).close()
        assert server.stop() == 0
    warnings = [item for item in server.log_entries if item["level"] == "WARN" and item["process"] == "launcher"]
    assert "starting all shards again" in warnings[0]["message"]
    assert {"launcher", "router"} <= {item["process"] for item in server.log_entries}
    assert all(set(item) >= {"timestamp", "level", "message", "target", "process"} for item in server.log_entries)


def test_failed_start_is_logged_as_json(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("[]")
    command = (WEFT_EXECUTABLE, "serve", SIMULATED_MODEL, "--port", "0", "--json-output", "--api-keys", "keys.json")
    with run_json_logging_server(tmp_path, *command) as server:
        assert server.wait_for_message("keys.json: ")["level"] == "ERROR"
        assert server.process.wait() == 2  # to start it again would not help


def test_text_generation_launcher_serves_and_logs_json(tmp_path: Path) -> None:
    environment = {"MODEL_ID": SIMULATED_MODEL, "PORT": "0", "HOSTNAME": "4f2d9a1c", "JSON_OUTPUT": "true"}
    with run_json_logging_server(tmp_path, *TGI_LAUNCHER_COMMAND, "--max-best-of", "3", **environment) as server:
        message = server.wait_for_message(f"weft serves {SIMULATED_MODEL} ")["message"]
        url = message.partition(" at ")[2].split()[0]
        assert url.startswith("http://0.0.0.0:")
        with urlopen(f"{url.replace('0.0.0.0', '127.0.0.1')}/info") as answer:
            assert json.load(answer)["max_best_of"] == 3
            assert answer.headers.get("Access-Control-Allow-Origin") == "*"
        assert server.stop() == 0
    assert server.log_entries[0]["message"].startswith("HOSTNAME is no address (4f2d9a1c)")
