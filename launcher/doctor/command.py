"""`weft doctor`: checks machine, installation and model, and prints one line per finding.

`checks.py` does the checks without torch, a child process those that need it (`shard/workers/doctor_survey.py`), and
`diagnosis.py` turns the child's results into findings.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.doctor import checks, diagnosis
from launcher.doctor.findings import Finding, compute_exit_code
from launcher.environment_variables import hub_cache_folder, python_module_command
from launcher.hub.config_check import check_model_config
from launcher.hub.resolve import ModelNotCachedError, find_model
from launcher.settings import LaunchConfig
from router.config import RouterConfig
from shard.config import ShardConfig

SURVEY_COMMAND = python_module_command("shard.workers.doctor_survey")
# the defaults
DEFAULT_LAUNCH_CONFIG, DEFAULT_ROUTER_CONFIG, DEFAULT_SHARD_CONFIG = LaunchConfig(), RouterConfig(), ShardConfig()
SURVEY_TIMEOUT_SECONDS = 120.0  # seconds for a child that loads torch, on a slow disk


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """Settings of the server to check."""

    model_id: str = DEFAULT_LAUNCH_CONFIG.model_id
    revision: str = DEFAULT_LAUNCH_CONFIG.revision
    num_shard: int = DEFAULT_LAUNCH_CONFIG.num_shard
    dtype: str = DEFAULT_SHARD_CONFIG.dtype
    device: str = DEFAULT_SHARD_CONFIG.device
    quantize: str = DEFAULT_SHARD_CONFIG.quantize
    max_batch_total_tokens: int | None = DEFAULT_ROUTER_CONFIG.max_batch_total_tokens
    hostname: str = DEFAULT_ROUTER_CONFIG.hostname
    port: int = DEFAULT_ROUTER_CONFIG.port


def run_checks(settings: DoctorSettings, environment: Mapping[str, str]) -> Iterator[Finding]:
    yield checks.check_python()
    yield from checks.check_packages()
    yield from checks.check_c_extensions(environment)
    folder, model_finding = find_model_folder(settings, hub_cache_folder(environment))
    survey_result = run_survey({"model": folder, "dtype": settings.dtype, "device": settings.device,
                                "num_shards": settings.num_shard, "block_size": DEFAULT_ROUTER_CONFIG.block_size,
                                "quantize": settings.quantize, "max_cache_tokens": settings.max_batch_total_tokens})
    if "failed" in survey_result:
        yield Finding("torch", "problem", survey_result["failed"],
                      "pip install torch, or see the README for its builds")
    else:
        yield from diagnosis.diagnose_machine(survey_result["machine"], checks.read_nvidia_driver_version())
    yield checks.check_shared_memory(settings.num_shard)
    yield from checks.check_hub_access(environment)
    yield checks.check_port(settings.hostname, settings.port)
    if model_finding:
        yield model_finding
    elif folder and "failed" not in survey_result:
        yield from diagnosis.diagnose_model(survey_result, settings.model_id)


def find_model_folder(settings: DoctorSettings, cache_folder: Path) -> tuple[str, Finding | None]:
    """Return the model's folder and None, or "" and the finding that explains why there is none."""
    try:
        folder = find_model(settings.model_id, settings.revision, cache_folder).folder
        if folder:
            check_model_config(Path(folder), settings.num_shard)
        return folder, None
    except ModelNotCachedError as error:
        return "", Finding("model", "warning", str(error), f"weft download {settings.model_id} fetches it beforehand")
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
