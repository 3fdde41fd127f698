"""`weft doctor`: checks machine, installation and model, and prints one line per finding.

`checks.py` does the checks without torch, a child process those that need it (`shard/workers/survey.py`), and
`diagnosis.py` turns the child's results into findings.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.doctor import checks, diagnosis
from launcher.doctor.findings import Finding, exit_code
from launcher.environment import hub_cache
from launcher.hub.resolve import Missing, find_model
from launcher.settings import LaunchConfig
from launcher.supervisor.plan import python_module
from router.config import RouterConfig
from shard.config import ShardConfig

SURVEY = python_module("shard.workers.survey")
LAUNCH, ROUTER, SHARD = LaunchConfig(), RouterConfig(), ShardConfig()  # the defaults
PATIENCE = 120.0  # seconds for a child that loads torch, on a slow disk


@dataclass(frozen=True, slots=True)
class Order:
    """Settings of the server to check."""

    model_id: str = LAUNCH.model_id
    revision: str = LAUNCH.revision
    num_shard: int = LAUNCH.num_shard
    dtype: str = SHARD.dtype
    device: str = SHARD.device
    hostname: str = ROUTER.hostname
    port: int = ROUTER.port


def examine(order: Order, environment: Mapping[str, str]) -> Iterator[Finding]:
    yield checks.python()
    yield from checks.packages()
    yield from checks.fast_parts(environment)
    folder, trouble = find(order, hub_cache(environment))
    found = survey({"model": folder, "dtype": order.dtype, "device": order.device, "num_shards": order.num_shard,
                    "block_size": ROUTER.block_size})
    if "failed" in found:
        yield Finding("torch", "problem", found["failed"], "pip install torch, or see the README for its builds")
    else:
        yield from diagnosis.machine(found["machine"], checks.driver())
    yield checks.shared_memory(order.num_shard)
    yield from checks.hub(environment)
    yield checks.port(order.hostname, order.port)
    if trouble:
        yield trouble
    elif folder and "failed" not in found:
        yield from diagnosis.model(found, order.model_id)


def find(order: Order, cache: Path) -> tuple[str, Finding | None]:
    """Return the model's folder and None, or "" and the finding that explains why there is none."""
    try:
        return find_model(order.model_id, order.revision, cache).folder, None
    except Missing as error:
        return "", Finding("model", "warning", str(error), f"weft download {order.model_id} fetches it beforehand")
    except ValueError as error:
        return "", Finding("model", "problem", str(error))


def survey(order: dict[str, Any]) -> dict[str, Any]:
    """Return the child's survey, or `failed` with the last line of its stderr."""
    try:
        child = subprocess.run([*SURVEY, json.dumps(order)], capture_output=True, text=True, check=False,
                               timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"failed": f"did not load within {PATIENCE:.0f} seconds"}
    if child.returncode:
        return {"failed": (child.stderr.strip().splitlines() or [f"ended with exit code {child.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def run(order: Order, environment: Mapping[str, str], *, as_json: bool) -> int:
    """Print the findings, as text each one as soon as it is found, and return the exit code."""
    findings = []
    for finding in examine(order, environment):
        findings.append(finding)
        if not as_json:
            print(finding, flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return exit_code(findings)
