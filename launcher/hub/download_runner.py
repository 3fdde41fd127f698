"""Download of a model by a child process (launcher/hub/model_download.py), which can be killed at any time.

The child reads the token from its standard input, where other users cannot see it. The end of that input means that the
launcher has ended. The launcher itself imports no HTTP client.
"""

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.environment_variables import hub_cache_folder, python_module_command, read_hub_access
from launcher.hub.resolve import (
    HUB_NAME_PATTERN,
    ModelNotCachedError,
    check_not_builtin,
    check_revision,
    find_model,
)


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """Settings of a download, without the token."""

    name: str
    revision: str
    cache_folder: str
    endpoint: str
    user_agent: str  # the User-Agent for the Hub
    hides_progress: bool = False
    missing_folder: str = ""  # for error messages: the missing folder that the user may have meant
    as_json: bool = False  # whether to log as JSON


def find_needed_download(name: str, revision: str, environment: Mapping[str, str],
                         user_agent: str) -> DownloadRequest | None:
    """Return the download that a model needs before it is served, or None if it is on this machine.

    Raises ValueError if the model is not on this machine and cannot be downloaded.
    """
    try:
        find_model(name, revision, hub_cache_folder(environment))
    except ModelNotCachedError as missing:
        try:
            return replace(make_download_request(name, revision, environment, user_agent),
                           missing_folder=str(Path(name).absolute()))
        except ValueError as error:
            raise ValueError(f"{missing}; {error}") from None
    return None


def make_download_request(name: str, revision: str, environment: Mapping[str, str], user_agent: str) -> DownloadRequest:
    """Return the download of a model, even if it is cached. Raises ValueError if it is impossible or forbidden."""
    revision, access = revision or "main", read_hub_access(environment)
    check_not_builtin(name)
    if not HUB_NAME_PATTERN.fullmatch(name):
        raise ValueError(f"a model at the Hub has a name such as org/name, got {name}")
    check_revision(revision)
    if access.offline_variable:
        raise ValueError(f"{access.offline_variable} is set, so nothing is downloaded")
    return DownloadRequest(name, revision, str(hub_cache_folder(environment)), access.endpoint, user_agent,
                           access.hides_progress)


def run_download(request: DownloadRequest, token: str) -> None:
    """Run a download. If it fails, exit with the child's code: the child has reported the error."""
    command = [*python_module_command("launcher.hub.model_download"), json.dumps(asdict(request))]
    # A process group of its own: Ctrl-C reaches the child only through this process.
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0) as child:
        try:
            exit_code = send_token_and_wait(child, token)
        except BaseException:
            child.kill()
            raise
    if exit_code:
        raise SystemExit(exit_code)


def send_token_and_wait(child: "subprocess.Popen[bytes]", token: str) -> int:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # the child has ended already and has reported why
        child.stdin.write(f"{token}\n".encode())
    return child.wait()
