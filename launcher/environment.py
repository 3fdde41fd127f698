"""What environment variables tell of folders, of the Hub and of this machine's libraries, and what shards are told by
them.

The variables are given; nothing here reads or sets them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

LIBRARIES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
NOWHERE = Path("/dev/null")  # a folder in which there can be nothing
TUNABLES = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb"
HUB = "https://huggingface.co"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKEN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
YES = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the Hub is reached, by the variables that all its clients follow."""

    endpoint: str = HUB
    token: str = field(default="", repr=False)
    offline: str = ""  # the variable that forbids to connect
    quiet: bool = False  # no progress


def hub_access(environment: Mapping[str, str]) -> HubAccess:
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or HUB
    if not re.fullmatch(r"https?://[!-~]+", endpoint):
        raise ValueError(f"HF_ENDPOINT must be an address that begins with https:// or http://, got {endpoint}")
    return HubAccess(endpoint, hub_token(environment), offline_by(environment),
                     says_yes(environment, "HF_HUB_DISABLE_PROGRESS_BARS"))


def hub_token(environment: Mapping[str, str]) -> str:
    """The token itself, or else what the file holds that `hf auth login` writes."""
    name = next((name for name in TOKEN if environment.get(name)), "")
    path = token_file(environment)
    token = (environment[name] if name else stored(path)).strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError(f"{name or path} holds characters that no token has")
    return token


def token_file(environment: Mapping[str, str]) -> Path:
    return given(environment, "HF_TOKEN_PATH") or hub_home(environment) / "token"


def token_from(environment: Mapping[str, str]) -> str:
    """Where the user's token comes from, or nothing. The token itself is not looked at."""
    name = next((name for name in TOKEN if environment.get(name)), "")
    return name or (str(token_file(environment)) if token_file(environment).is_file() else "")


def offline_by(environment: Mapping[str, str]) -> str:
    """The variable that forbids to connect to the Hub, or nothing."""
    return next((name for name in OFFLINE if says_yes(environment, name)), "")


def stored(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # most users have none
        return ""


def says_yes(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").upper() in YES


def hub_home(environment: Mapping[str, str]) -> Path:
    return given(environment, "HF_HOME") or cache_folder(environment) / "huggingface"


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The folder where clients of the Hub keep what they download, by the variables that they all follow."""
    named = given(environment, "HF_HUB_CACHE") or given(environment, "HUGGINGFACE_HUB_CACHE")
    return named or hub_home(environment) / "hub"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where programs of this user keep what can be made anew."""
    try:
        return given(environment, "XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # this user has no home
        return NOWHERE


def machine_file(environment: Mapping[str, str], release: str) -> Path:
    """Where shards keep what they found out about this machine. It holds for a release, and for the variables by which
    users tell libraries how to compute."""
    settings = sorted(item for item in environment.items() if item[0].startswith(LIBRARIES))
    digest = sha256(repr((release, settings)).encode()).hexdigest()
    return cache_folder(environment) / "weft" / f"machine-{digest[:16]}.json"


def record_folder(environment: Mapping[str, str]) -> Path:
    """Where the router writes recordings."""
    return cache_folder(environment) / "weft" / "recordings"


def adapter_folder(environment: Mapping[str, str]) -> Path:
    """Where adapters are kept that were fetched."""
    return cache_folder(environment) / "weft" / "adapters"


def given(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]).expanduser() if environment.get(name) else None


def large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Ask for memory in large pages, unless the user decided about it: gigabytes of weights are there sooner."""
    told = environment.get(TUNABLES, "")
    return {} if LARGE_PAGES in told else {TUNABLES: ":".join(filter(None, [told, f"{LARGE_PAGES}=1"]))}
