"""`weft doctor`: checks machine, installation and model, and prints one line per finding.

`checks.py` does the checks without torch, a child process those that need it (`shard/workers/doctor_survey.py`), and
`diagnosis.py` turns the child's results into findings.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from launcher.banner import join_names
from launcher.command_line.start_checks import check_server_settings, list_start_warnings
from launcher.doctor import checks, diagnosis
from launcher.doctor.adapter_checks import check_adapters
from launcher.doctor.findings import Finding, compute_exit_code, make_ok_finding
from launcher.environment_variables import hub_cache_folder, python_module_command
from launcher.hub.config_check import check_model_config
from launcher.hub.resolve import ModelNotCachedError, find_model
from launcher.settings import LaunchConfig
from launcher.supervisor.supervisor import ConfigurationError
from router.config import RouterConfig
from shard.config import ShardConfig

SURVEY_COMMAND = python_module_command("shard.workers.doctor_survey")
SURVEY_TIMEOUT_SECONDS = 120.0  # seconds for a child that loads torch, on a slow disk


class DoctorSettings(NamedTuple):
    """Settings of the server to check."""

    launch: LaunchConfig
    router: RouterConfig
    shard: ShardConfig


def run_checks(settings: DoctorSettings, environment: Mapping[str, str]) -> Iterator[Finding]:
    launch, router, shard = settings
    yield checks.check_python()
    yield from checks.check_packages()
    yield from checks.check_c_extensions(environment)
    folder, model_finding = find_model_folder(launch, hub_cache_folder(environment), shard.quantize)
    survey_result = run_survey({"model": folder, "dtype": shard.dtype, "device": shard.device,
                                "num_shards": launch.num_shard, "block_size": router.block_size,
                                "quantize": shard.quantize, "max_cache_tokens": router.max_batch_total_tokens})
    if "failed" in survey_result:
        yield Finding("torch", "problem", survey_result["failed"],
                      "pip install torch, or see the README for its builds")
    else:
        yield from diagnosis.diagnose_machine(survey_result["machine"], checks.read_nvidia_driver_version())
    yield checks.check_shared_memory(launch.num_shard)
    yield from checks.check_hub_access(environment)
    try:
        check_server_settings(launch, router, shard.device)
    except ConfigurationError as error:
        yield Finding("settings", "problem", str(error))
    else:
        yield from (Finding("settings", "warning", warning) for warning in list_start_warnings(launch, router))
        yield from check_keys(router)
        yield from check_adapters(launch, router)
    yield checks.check_port(router.hostname, router.port)
    if model_finding:
        yield model_finding
    elif folder and "failed" not in survey_result:
        yield from diagnosis.diagnose_model(survey_result, launch.model_id)


def check_keys(router: RouterConfig) -> Iterator[Finding]:
    """Yield whose keys a file has, if there is one."""
    if router.api_keys:
        entries = import_module("router.api_keys").load_key_file(Path(router.api_keys)).values()
        owners = sorted({entry.tenant + " (admin)" * (entry.role == "admin") for entry in entries})
        yield make_ok_finding("keys", f"{len(entries)}, of {join_names(owners)}")


def find_model_folder(launch: LaunchConfig, cache_folder: Path, quantize: str) -> tuple[str, Finding | None]:
    """Return the model's folder and None, or "" and the finding that explains why there is none."""
    try:
        folder = find_model(launch.model_id, launch.revision, cache_folder).folder
        if folder:
            check_model_config(Path(folder), launch.num_shard, quantize)
        return folder, None
    except ModelNotCachedError as error:
        return "", Finding("model", "warning", str(error), f"weft download {launch.model_id} fetches it beforehand")
    except ValueError as error:
        return "", Finding("model", "problem", str(error))


def run_survey(survey_settings: dict[str, Any]) -> dict[str, Any]:
    """Return the child's survey, or `failed` with the last line of its stderr."""
    try:
        child = subprocess.run([*SURVEY_COMMAND, json.dumps(survey_settings)], capture_output=True, text=True,
                               check=False, timeout=SURVEY_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"failed": f"did not load within {SURVEY_TIMEOUT_SECONDS:.0f} seconds"}
    if child.returncode:
        return {"failed": (child.stderr.strip().splitlines() or [f"ended with exit code {child.returncode}"])[-1]}
    survey_result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return survey_result


def run_doctor(settings: DoctorSettings, environment: Mapping[str, str], *, as_json: bool) -> int:
    """Print the findings, as text each one as soon as it is found, and return the exit code."""
    findings = []
    for finding in run_checks(settings, environment):
        findings.append(finding)
        if not as_json:
            print(finding, flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return compute_exit_code(findings)
