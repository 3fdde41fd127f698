"""Check of `weft doctor`: whether the adapters in the folder of --adapter-root can be read. Only their headers are."""

import os
from collections.abc import Iterator
from pathlib import Path

from launcher.adapters.adapter_files import check_adapter_file_names, read_adapter_metadata
from launcher.adapters.errors import AdapterError
from launcher.adapters.sources.local import LocalSource
from launcher.banner import describe_adapters
from launcher.doctor.findings import Finding, make_ok_finding
from launcher.settings import LaunchConfig
from router.config import RouterConfig


def check_adapters(launch: LaunchConfig, router: RouterConfig) -> Iterator[Finding]:
    """Yield which adapters requests may name, and a warning for each one that cannot be read."""
    if adapters := describe_adapters(launch, router):
        yield make_ok_finding("adapters", adapters)
    for name in LocalSource(launch.adapter_root).list_names():
        try:
            check_adapter(Path(launch.adapter_root, name))
        except (AdapterError, ValueError, OSError) as error:
            yield Finding("adapter", "warning", f"{name}: {error}")


def check_adapter(folder: Path) -> None:
    """Raise AdapterError, ValueError or OSError for an adapter that cannot be read."""
    check_adapter_file_names(os.listdir(folder), "the folder")
    read_adapter_metadata(folder)
