"""Has a child process download a model, and stays free to stop it at any moment. Loads nothing that speaks HTTP.

The child does the work in launcher/download.py. It hears the token on its standard input, where nobody else sees it;
the end of that input tells it that we are gone.
"""

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.environment import hub_access, hub_cache
from launcher.model import BOX, HUB_NAME, Missing, check_revision, find_model
from launcher.plan import python_module


@dataclass(frozen=True, slots=True)
class Order:
    """What to download from where to where, without the token."""

    name: str
    revision: str
    cache: str
    endpoint: str
    client: str  # what we call ourselves at the Hub
    quiet: bool = False
    no_folder: str = ""  # where there is none, if the user may have meant one
    as_json: bool = False  # how to tell what happens


def what_is_missing(name: str, revision: str, environment: Mapping[str, str], client: str) -> Order | None:
    """What must be downloaded before the model is served; nothing if it is here. Raises ValueError if neither helps."""
    try:
        find_model(name, revision, hub_cache(environment))
    except Missing as missing:
        try:
            return replace(order(name, revision, environment, client), no_folder=str(Path(name).absolute()))
        except ValueError as error:
            raise ValueError(f"{missing}; {error}") from None
    return None


def order(name: str, revision: str, environment: Mapping[str, str], client: str) -> Order:
    """Whatever is here already. Raises ValueError for what cannot or may not be downloaded."""
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
    """Ends as the child does: what went wrong it has told."""
    command = [*python_module("launcher.download"), json.dumps(asdict(wanted))]
    # A process group of its own: Ctrl-C reaches the child only through us.
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
    with suppress(BrokenPipeError):  # it has ended already, and said why
        child.stdin.write(f"{token}\n".encode())
    return child.wait()
