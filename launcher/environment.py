"""Settings from environment variables: folders, access to the Hub, and variables for the shards.

The environment is an argument; this module neither reads nor sets variables of the process.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

LIBRARIES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
NOWHERE = Path("/dev/null")  # no file can exist below it
TUNABLES = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb"
HUB = "https://huggingface.co"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKEN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
YES = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Access to the Hub, from the variables that all its clients use."""

    endpoint: str = HUB
    token: str = field(default="", repr=False)
    offline: str = ""  # name of the variable that forbids connections
    quiet: bool = False  # hide the progress of downloads


def hub_access(environment: Mapping[str, str]) -> HubAccess:
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or HUB
    if not re.fullmatch(r"https?://[!-~]+", endpoint):
        raise ValueError(f"HF_ENDPOINT must be an address that begins with https:// or http://, got {endpoint}")
    return HubAccess(endpoint, hub_token(environment), offline_by(environment),
                     says_yes(environment, "HF_HUB_DISABLE_PROGRESS_BARS"))


def hub_token(environment: Mapping[str, str]) -> str:
    """Return the token from its variable, or from the file that `hf auth login` writes, or ""."""
    name = next((name for name in TOKEN if environment.get(name)), "")
    path = token_file(environment)
    token = (environment[name] if name else stored(path)).strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError(f"{name or path} holds characters that no token has")
    return token


def token_file(environment: Mapping[str, str]) -> Path:
    return given(environment, "HF_TOKEN_PATH") or hub_home(environment) / "token"


def token_from(environment: Mapping[str, str]) -> str:
    """Return the name of the variable or file that holds the token, or "". Does not read the token."""
    name = next((name for name in TOKEN if environment.get(name)), "")
    return name or (str(token_file(environment)) if token_file(environment).is_file() else "")


def offline_by(environment: Mapping[str, str]) -> str:
    """Return the name of the variable that forbids connections to the Hub, or ""."""
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
    """Return the folder of the Hub's cache, from the variables that all its clients use."""
    named = given(environment, "HF_HUB_CACHE") or given(environment, "HUGGINGFACE_HUB_CACHE")
    return named or hub_home(environment) / "hub"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's cache folder."""
    try:
        return given(environment, "XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # this user has no home
        return NOWHERE


def machine_file(environment: Mapping[str, str], release: str) -> Path:
    """Return the file in which the shards cache their probes of this machine.

    Its name depends on the release and on the variables that configure numerical libraries.
    """
    settings = sorted(item for item in environment.items() if item[0].startswith(LIBRARIES))
    digest = sha256(repr((release, settings)).encode()).hexdigest()
    return cache_folder(environment) / "weft" / f"machine-{digest[:16]}.json"


def record_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the router's recordings."""
    return cache_folder(environment) / "weft" / "recordings"


def adapter_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the adapter store."""
    return cache_folder(environment) / "weft" / "adapters"


def given(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]).expanduser() if environment.get(name) else None


def large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that enables huge pages, which speed up loading weights, unless the user has set it."""
    told = environment.get(TUNABLES, "")
    return {} if LARGE_PAGES in told else {TUNABLES: ":".join(filter(None, [told, f"{LARGE_PAGES}=1"]))}
