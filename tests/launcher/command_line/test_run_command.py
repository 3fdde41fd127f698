import os
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.command_line import run_command
from launcher.command_line.run_command import make_flags, run_model

FAKE_COMMAND = (sys.executable, "fake.py", "serve")
FAKE_SERVER = """
import json, os, pathlib, signal, sys, time
pathlib.Path("seen").write_text(json.dumps([sys.argv[1:], os.environ.get("WEFT_API_KEY", "")]))
if "--fails" in sys.argv[1:]: sys.exit(2)
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("stopped").touch(), sys.exit(0)))
print("something else")
print("weft serves org/name on 1 shard at http://127.0.0.1:4321", flush=True)
while True: time.sleep(60)
"""


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Replace the server by a program that prints a banner, and collect the URL and key of each chat."""
    (tmp_path / "fake.py").write_text(FAKE_SERVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command.signal, "signal", lambda *_: None)
    calls = list[Any]()
    monkeypatch.setattr("launcher.client.terminal_chat.run_chat",
                        lambda settings, key: calls.append((settings.url, key)) or 0)
    return calls


def test_chat_gets_the_address_of_a_quiet_server_that_stops_with_it(chats: list[Any], tmp_path: Path) -> None:
    assert run_model({"model_id": "org/name", "num_shard": 2, "api_key": "secret"}, FAKE_COMMAND) == 0
    assert chats == [("http://127.0.0.1:4321", "secret")]
    assert (tmp_path / "stopped").exists()
    seen = (tmp_path / "seen").read_text()
    assert seen == ('[["serve", "--log-level=warning", "--model-id=org/name", "--num-shard=2", '
                    '"--port=0", "--no-json-output", "--no-request-log", "--shutdown-timeout=1.0", '
                    '"--nnodes=1"], "secret"]')
    assert "WEFT_API_KEY" not in os.environ


def test_server_that_does_not_start_gives_its_exit_code(chats: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "make_flags", lambda _: ["--fails"])
    with pytest.raises(SystemExit) as ended:
        run_model({}, FAKE_COMMAND)
    assert (ended.value.code, chats) == (2, [])


def test_settings_become_flags() -> None:
    assert make_flags({"port": 0, "adapters": True, "request_log": False, "cors_allow_origin": ("*", "null")}) == [
        "--port=0", "--adapters", "--no-request-log", "--cors-allow-origin=*", "--cors-allow-origin=null"]
