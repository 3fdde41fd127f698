"""What environment variables tell of folders and of this machine's libraries, and what shards are told by them.

The variables are given; nothing here reads or sets them.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

LIBRARIES = ("ATEN_", "DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
NOWHERE = Path("/dev/null")  # a folder in which there can be nothing
TUNABLES = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb"


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The folder where clients of the Hub keep what they download, by the variables that they all follow."""
    home = given(environment, "HF_HOME") or cache_folder(environment) / "huggingface"
    return given(environment, "HF_HUB_CACHE") or given(environment, "HUGGINGFACE_HUB_CACHE") or home / "hub"


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


def given(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]).expanduser() if environment.get(name) else None


def large_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Ask for memory in large pages, unless the user decided about it: gigabytes of weights are there sooner."""
    told = environment.get(TUNABLES, "")
    return {} if LARGE_PAGES in told else {TUNABLES: ":".join(filter(None, [told, f"{LARGE_PAGES}=1"]))}
