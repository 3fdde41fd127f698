"""Checks of a server's settings that cost nothing, so that mistakes are reported before a model is downloaded."""

import os
import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from launcher.adapters.adapter_files import CONFIG_FILE
from launcher.adapters.allow_list import AdapterAllowList
from launcher.banner import serves_adapters
from launcher.environment_variables import has_gpu
from launcher.hub.resolve import SIMULATED_MODEL
from launcher.settings import LaunchConfig
from launcher.supervisor.supervisor import ConfigurationError
from router.config import LOCAL_SOURCE, RouterConfig
from shard.telemetry.span_export_interface import check_otlp_installed

MAX_SOCKET_PATH_BYTES = 100  # bytes; the kernel allows 107


def check_server_settings(launch: LaunchConfig, router: RouterConfig, device: str) -> None:
    """Raise ConfigurationError for settings that cannot be used, such as files that cannot be read."""
    check_api_keys(router)
    check_readable(router.tokenizer_config_path, "--tokenizer-config-path")
    check_adapter_root(launch, router)
    if launch.allowed_adapters or serves_adapters(launch, router):
        check_allowed_adapters(launch)
    check_otlp_installed(launch.trace_settings)
    check_device(device, launch.model_id)


def check_readable(path: str, flag: str) -> None:
    """Raise ConfigurationError if a file cannot be read. The router would only report it after the model's download."""
    try:
        if path:
            os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} ({flag}): {error.strerror}") from error


def check_api_keys(router: RouterConfig) -> None:
    """Raise ConfigurationError for an unusable file of keys. The router would only report it after the download."""
    if router.api_keys:
        try:
            import_module("router.api_keys").ApiKeys.from_config(router)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None


def list_start_warnings(launch: LaunchConfig, router: RouterConfig) -> list[str]:
    """Return messages about settings without effect."""
    if router.adapter_source == LOCAL_SOURCE and not launch.adapter_root:
        return ["--adapter-source local needs --adapter-root FOLDER; without it requests for such adapters are refused"]
    return []


def check_allowed_adapters(launch: LaunchConfig) -> None:
    """Raise ConfigurationError for an invalid entry. The store would only report it when an adapter is requested."""
    try:
        AdapterAllowList(launch.allowed_adapters, os.environ)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def check_adapter_root(launch: LaunchConfig, router: RouterConfig) -> None:
    """Raise ConfigurationError if the folder does not exist, or is not named although adapters in folders are loaded
    at start. The router would only report it after the model is loaded."""
    if launch.adapter_root and not os.path.isdir(launch.adapter_root):
        raise ConfigurationError(f"there is no folder {launch.adapter_root} (--adapter-root)")
    if launch.adapter_root and is_adapter_without_others(root := Path(launch.adapter_root).absolute()):
        raise ConfigurationError(f"{launch.adapter_root} (--adapter-root) is an adapter itself; name the folder that "
                                 f"it is in: --adapter-root {shlex.quote(str(root.parent))}, and requests may name "
                                 f"{root.name}")
    folders = list_preloaded_local_adapters(router)
    if folders and not launch.adapter_root:
        raise ConfigurationError(f"to load the adapter {folders[0]}, name the folder that contains it: --adapter-root "
                                 f"{suggest_adapter_root(folders)}")


def is_adapter_without_others(folder: Path) -> bool:
    """Whether a folder is an adapter. One that contains others, as peft writes several, is a root as well."""
    return (folder / CONFIG_FILE).is_file() and not any(folder.glob(f"*/{CONFIG_FILE}"))


def list_preloaded_local_adapters(router: RouterConfig) -> list[str]:
    """Return the adapters that are loaded at start from folders: those of the source `local`, and paths, which the
    default source, the Hub, does not have."""
    preloaded_source = router.preloaded_adapter_source or router.adapter_source
    adapters = [(adapter_id.rpartition("=")[2], preloaded_source) for adapter_id in router.preloaded_adapter_ids]
    adapters += [(router.adapter_id, router.adapter_source)] * bool(router.adapter_id)
    return [name for name, source in adapters
            if source == LOCAL_SOURCE or (source == "hub" and name.startswith(("/", ".")))]


def suggest_adapter_root(folders: Sequence[str]) -> str:
    """Return the folder above all of these, or a placeholder: the whole file system is no good advice."""
    if not all(map(os.path.isabs, folders)):
        return "FOLDER"
    common = os.path.commonpath([os.path.dirname(os.path.normpath(folder)) for folder in folders])
    return "FOLDER" if common == os.sep else shlex.quote(common)


def check_device(device: str, model_name: str) -> None:
    """Raise ConfigurationError if a GPU is asked for where there is surely none; the shards would say it much later."""
    if device == "cuda" and model_name != SIMULATED_MODEL and not has_gpu():
        raise ConfigurationError("--device cuda needs a GPU that torch can use, there is none; use --device cpu")


def check_socket_path_length(folder: str) -> str:
    if len(os.fsencode(folder)) + len("/shard-00.sock") > MAX_SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"the name of the temporary folder {folder} is too long for sockets; set TMPDIR to a shorter one")
    return folder
