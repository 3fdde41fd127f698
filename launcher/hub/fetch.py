"""Download of a model by a child process (launcher/hub/download.py), which can be killed at any time.

The child reads the token from its standard input, where other users cannot see it. The end of that input means that the
launcher has ended. The launcher itself imports no HTTP client.
"""

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.environment import hub_access, hub_cache
from launcher.hub.resolve import BOX, HUB_NAME, Missing, check_revision, find_model
from launcher.supervisor.plan import python_module


@dataclass(frozen=True, slots=True)
class Order:
    """Settings of a download, without the token."""

    name: str
    revision: str
    cache: str
    endpoint: str
    client: str  # the User-Agent for the Hub
    quiet: bool = False
    no_folder: str = ""  # for error messages: the missing folder that the user may have meant
    as_json: bool = False  # whether to log as JSON


def what_is_missing(name: str, revision: str, environment: Mapping[str, str], client: str) -> Order | None:
    """Return the download that a model needs before it is served, or None if it is on this machine.

    Raises ValueError if the model is not on this machine and cannot be downloaded.
    """
    try:
        find_model(name, revision, hub_cache(environment))
    except Missing as missing:
        try:
            return replace(order(name, revision, environment, client), no_folder=str(Path(name).absolute()))
        except ValueError as error:
            raise ValueError(f"{missing}; {error}") from None
    return None


def order(name: str, revision: str, environment: Mapping[str, str], client: str) -> Order:
    """Return the download of a model, even if it is cached. Raises ValueError if it is impossible or forbidden."""
    revision, access = revision or "main", hub_access(environment)
    if name in BOX:
        raise ValueError(f"{name} comes with weft, so there is nothing to download")
    if not HUB_NAME.fullmatch(name):
        raise ValueError(f"a model at the Hub has a name such as org/name, got {name}")
    check_revision(revision)
    if access.offline:
        raise ValueError(f"{access.offline} is set, so nothing is downloaded")
    return Order(name, revision, str(hub_cache(environment)), access.endpoint, client, access.quiet)


def fetch(wanted: Order, token: str) -> None:
    """Run a download. If it fails, exit with the child's code: the child has reported the error."""
    command = [*python_module("launcher.hub.download"), json.dumps(asdict(wanted))]
    # A process group of its own: Ctrl-C reaches the child only through this process.
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0) as child:
        try:
            code = wait(child, token)
        except BaseException:
            child.kill()
            raise
    if code:
        raise SystemExit(code)


def wait(child: "subprocess.Popen[bytes]", token: str) -> int:
    assert child.stdin
    with suppress(BrokenPipeError):  # the child has ended already and has reported why
        child.stdin.write(f"{token}\n".encode())
    return child.wait()
