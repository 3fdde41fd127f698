"""Settings from environment variables: folders, access to the Hub, and variables for the shards.

The environment is an argument; this module neither reads nor sets variables of the process.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

LIBRARY_VARIABLE_PREFIXES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
NONEXISTENT_FOLDER = Path("/dev/null")  # no file can exist below it
GLIBC_TUNABLES_VARIABLE = "GLIBC_TUNABLES"
HUGE_PAGES_TUNABLE = "glibc.malloc.hugetlb"
DEFAULT_HUB_ENDPOINT = "https://huggingface.co"
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
TRUE_VALUES = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Access to the Hub, from the variables that all its clients use."""

    endpoint: str = DEFAULT_HUB_ENDPOINT
    token: str = field(default="", repr=False)
    offline_variable: str = ""  # name of the variable that forbids connections
    hides_progress: bool = False  # hide the progress of downloads


def read_hub_access(environment: Mapping[str, str]) -> HubAccess:
    endpoint = environment.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_HUB_ENDPOINT
    if not re.fullmatch(r"https?://[!-~]+", endpoint):
        raise ValueError(f"HF_ENDPOINT must be an address that begins with https:// or http://, got {endpoint}")
    return HubAccess(endpoint, read_hub_token(environment), find_offline_variable(environment),
                     is_variable_true(environment, "HF_HUB_DISABLE_PROGRESS_BARS"))


def read_hub_token(environment: Mapping[str, str]) -> str:
    """Return the token from its variable, or from the file that `hf auth login` writes, or ""."""
    name = next((name for name in TOKEN_VARIABLES if environment.get(name)), "")
    path = token_file_path(environment)
    token = (environment[name] if name else read_text_or_empty(path)).strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError(f"{name or path} holds characters that no token has")
    return token


def token_file_path(environment: Mapping[str, str]) -> Path:
    return path_from_variable(environment, "HF_TOKEN_PATH") or hub_home_folder(environment) / "token"


def find_token_source(environment: Mapping[str, str]) -> str:
    """Return the name of the variable or file that holds the token, or "". Does not read the token."""
    name = next((name for name in TOKEN_VARIABLES if environment.get(name)), "")
    return name or (str(token_file_path(environment)) if token_file_path(environment).is_file() else "")


def find_offline_variable(environment: Mapping[str, str]) -> str:
    """Return the name of the variable that forbids connections to the Hub, or ""."""
    return next((name for name in OFFLINE_VARIABLES if is_variable_true(environment, name)), "")


def read_text_or_empty(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # most users have none
        return ""


def is_variable_true(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").upper() in TRUE_VALUES


def has_gpu(dev_folder: Path = Path("/dev")) -> bool:
    """Return whether there is a device file of a GPU that torch might use: NVIDIA's, AMD's, or that of WSL."""
    return any((dev_folder / name).exists() for name in ("nvidiactl", "nvidia0", "kfd", "dxg"))


def hub_home_folder(environment: Mapping[str, str]) -> Path:
    return path_from_variable(environment, "HF_HOME") or user_cache_folder(environment) / "huggingface"


def hub_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the Hub's cache, from the variables that all its clients use."""
    configured_folder = path_from_variable(environment,
                                           "HF_HUB_CACHE") or path_from_variable(environment, "HUGGINGFACE_HUB_CACHE")
    return configured_folder or hub_home_folder(environment) / "hub"


def user_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's cache folder."""
    try:
        return path_from_variable(environment, "XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # this user has no home
        return NONEXISTENT_FOLDER


def get_machine_probes_path(environment: Mapping[str, str], weft_version: str) -> Path:
    """Return the file in which the shards cache their probes of this machine.

    Its name depends on the release and on the variables that configure numerical libraries.
    """
    settings = sorted(item for item in environment.items() if item[0].startswith(LIBRARY_VARIABLE_PREFIXES))
    digest = sha256(repr((weft_version, settings)).encode()).hexdigest()
    return user_cache_folder(environment) / "weft" / f"machine-{digest[:16]}.json"


def recordings_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the router's recordings."""
    return user_cache_folder(environment) / "weft" / "recordings"


def adapter_store_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the adapter store."""
    return user_cache_folder(environment) / "weft" / "adapters"


def path_from_variable(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]).expanduser() if environment.get(name) else None


def huge_page_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that enables huge pages, which speed up loading weights, unless the user has set it."""
    tunables = environment.get(GLIBC_TUNABLES_VARIABLE, "")
    return {} if HUGE_PAGES_TUNABLE in tunables else {
        GLIBC_TUNABLES_VARIABLE: ":".join(filter(None, [tunables, f"{HUGE_PAGES_TUNABLE}=1"]))}


def python_module_command(name: str) -> tuple[str, ...]:
    """Return the command that runs a module.

    -P keeps the user's current folder out of the child's imports: it may hold a `router` or a `shard.py` as well.
    """
    return (sys.executable, "-P", "-m", name)
