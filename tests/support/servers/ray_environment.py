"""An environment with Ray, which is made once under `.clients` and sees the packages of this one as well."""

import site
from pathlib import Path

from support.servers.client_environments import make_client_environment

RAY_PACKAGE = "ray[serve]==2.60.0"


def make_ray_environment() -> Path:
    """Return the Python of the environment; skip the test if Ray cannot be installed."""
    python = make_client_environment("ray", RAY_PACKAGE)
    folder = next((python.parents[1] / "lib").glob("python3*")) / "site-packages"
    (folder / "weft_packages.pth").write_text("\n".join(site.getsitepackages()))
    return python
