"""`weft run`: a server of its own and a chat with it, in one terminal. The server ends with the chat."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from launcher.settings import SETTINGS_BY_NAME
from router.config import API_KEY_ENV

URL_MARK = " at http"  # in the first line of the banner
# A free port, a banner with its number, and nothing in the terminal but the chat once the server runs. When it stops,
# nobody waits for an answer any more.
FIXED_SETTINGS: Mapping[str, Any] = {"port": 0, "json_output": False, "request_log": False, "shutdown_timeout": 1.0,
                                     "nnodes": 1}
DEFAULT_LOG_LEVEL = "warning"
STOP_TIMEOUT_SECONDS = 30.0
PR_SET_PDEATHSIG = 1  # of Linux' prctl: the signal that a process gets when its parent ends


def run_model(settings: Mapping[str, Any], serve_command: Sequence[str]) -> int:
    """Serve a model with these settings, by name, and chat with it. `serve_command` is that of a server, without flags.

    Return the exit code of the chat, or that of the server if it does not start; it has reported the reason itself.
    """
    chat, terminal = import_module("launcher.client.chat_client"), import_module("launcher.client.terminal_chat")
    api_key = settings.get("api_key", "")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    flags = make_flags({"log_level": DEFAULT_LOG_LEVEL, **settings, **FIXED_SETTINGS, "api_key": None})
    with run_server([*serve_command, *flags], {API_KEY_ENV: api_key} if api_key else {}) as url:
        exit_code: int = terminal.run_chat(chat.ChatSettings(url), api_key)
    return exit_code


def exit_on_signal(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def make_flags(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as flags of `weft serve`; those that are None are left out."""
    flags = list[str]()
    for name, value in settings.items():
        flag = SETTINGS_BY_NAME[name].flags[0]
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            flags += [f"{flag}={item}" for item in (value if isinstance(value, tuple | list) else (value,))]
    return flags


@contextmanager
def run_server(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Run a server and yield its URL. Raises SystemExit with its code if it ends before it is ready."""
    # A session of its own, since Ctrl-C stops an answer of the chat and must not reach the server.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables},
                          start_new_session=True,
                          preexec_fn=set_parent_death_signal) as server:  # noqa: PLW1509 - no threads yet
        try:
            yield wait_for_server_url(server)
        finally:
            stop_server(server)


def set_parent_death_signal() -> None:
    """Let this process be stopped when its parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def wait_for_server_url(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if URL_MARK in line:
            return f"http{line.rpartition(URL_MARK)[2].strip()}"
    raise SystemExit(server.wait())


def stop_server(server: "subprocess.Popen[str]") -> None:
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
