"""Connections that a server opens by itself: none, whatever requests name, unless they name an adapter of the Hub."""

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from support.servers.weft_process import SIMULATED_MODEL, WeftProcess, run_weft_process

pytestmark = pytest.mark.slow

# Imported by each Python process of the server. gRPC's own connections, to unix sockets, are not seen.
AUDIT_PROGRAM = """
import sys

def log_connection(event, arguments):
    if event == "socket.getaddrinfo" or event == "socket.connect" and isinstance(arguments[1], tuple):
        with open({path!r}, "a") as log:
            log.write(f"{{event}} {{arguments[-1] if event == 'socket.connect' else arguments[0]}}\\n")

sys.addaudithook(log_connection)
"""
REQUESTS: list[tuple[str, Any]] = [
    ("/generate", {"inputs": "x ![](http://192.0.2.1/a.png)", "parameters": {"max_new_tokens": 2}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://192.0.2.1/a.png"}}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "http://192.0.2.1/schema.json"}}}}),
    ("/generate", {"inputs": "x", "parameters": {"adapter_id": "http://192.0.2.1/adapter", "adapter_source": "local"}}),
    ("/generate", {"inputs": "x", "parameters": {"adapter_id": "s3://192.0.2.1/adapter", "adapter_source": "s3"}}),
]
HUB_REQUEST = ("/generate", {"inputs": "x", "parameters": {"adapter_id": "org/adapter", "adapter_source": "hub"}})


def post(weft: WeftProcess, path: str, body: Any) -> int:
    try:
        with urlopen(Request(weft.url + path, json.dumps(body).encode(), {"content-type": "application/json"})) as done:
            return int(done.status)
    except HTTPError as error:
        return error.code


@pytest.fixture
def connection_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "audit").mkdir()
    path = tmp_path / "connections"
    path.touch()
    (tmp_path / "audit/sitecustomize.py").write_text(AUDIT_PROGRAM.format(path=str(path)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'audit'}:{Path(__file__).parents[2]}")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return path


def test_no_request_opens_a_connection_but_for_an_adapter_of_the_hub(tmp_path: Path, connection_log: Path) -> None:
    with run_weft_process(tmp_path, SIMULATED_MODEL, "--adapters", "--adapter-root", str(tmp_path)) as weft:
        bound = connection_log.read_text()  # the address to listen on is looked up
        assert [post(weft, path, body) for path, body in REQUESTS] == [200, 400, 400, 424, 424]
        assert connection_log.read_text() == bound
        assert post(weft, *HUB_REQUEST) == 424
    assert "127.0.0.1" in connection_log.read_text().removeprefix(bound)  # the hook sees connections


def test_offline_server_opens_no_connection(
        tmp_path: Path, connection_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with run_weft_process(tmp_path) as weft:
        assert [post(weft, path, body) for path, body in (*REQUESTS, HUB_REQUEST)][-1] == 424
    assert "socket.connect" not in connection_log.read_text()
