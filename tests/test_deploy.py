"""The examples on the deployment pages work as written: files parse, flags exist, timeouts are consistent."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import DOCTOR_SETTINGS
from launcher.settings import SETTING_GROUPS
from launcher.supervisor.supervisor import EXIT_MARGIN_SECONDS, ConfigurationError, LaunchError, TooManyDeathsError

DOCS_FOLDER = Path(__file__).parents[1] / "docs"
DEPLOY_PAGE = (DOCS_FOLDER / "deploy.md").read_text()
KUBERNETES_PAGE = (DOCS_FOLDER / "guides/kubernetes.md").read_text()
SERVE_FLAGS = {flag for settings in SETTING_GROUPS.values() for item in settings for flag in item.flags}
DOCTOR_FLAGS = {flag for settings in SETTING_GROUPS.values() for item in settings if item.name in DOCTOR_SETTINGS
                for flag in item.flags}


def find_code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def parse_systemd_unit() -> dict[str, str]:
    [text] = find_code_blocks(DEPLOY_PAGE, "ini")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def parse_pod_spec() -> dict[str, Any]:
    [text] = find_code_blocks(KUBERNETES_PAGE, "yaml")
    *_, deployment = yaml.safe_load_all(text)
    return dict(deployment["spec"]["template"]["spec"])


def iter_commands() -> Iterator[list[str]]:
    """Yield every command line of weft on the two pages, split into words."""
    for block in find_code_blocks(DEPLOY_PAGE + KUBERNETES_PAGE, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.search(r"\bweft (serve|doctor)\b.*", line):
                yield match[0].split()[1:]
    yield parse_systemd_unit()["ExecStart"].split()[1:]
    yield parse_pod_spec()["containers"][0]["args"]


def test_flags_on_the_deployment_pages_exist() -> None:
    commands = list(iter_commands())
    assert len(commands) >= 6
    for command, *words in commands:
        flags = {word for word in words if word.startswith("-")}
        assert flags <= (SERVE_FLAGS if command == "serve" else DOCTOR_FLAGS)


def get_flag_value(arguments: list[str], flag: str) -> float:
    return float(arguments[arguments.index(flag) + 1])


def test_systemd_stop_timeout_covers_the_shutdown_timeout() -> None:
    timeout = get_flag_value(parse_systemd_unit()["ExecStart"].split(), "--shutdown-timeout")
    assert float(parse_systemd_unit()["TimeoutStopSec"]) >= timeout + 2 * EXIT_MARGIN_SECONDS
    assert parse_systemd_unit()["KillMode"] == "mixed"


def test_systemd_restarts_only_after_retryable_failures() -> None:
    assert (parse_systemd_unit()["Restart"],
            parse_systemd_unit()["RestartPreventExitStatus"]) == ("on-failure", str(ConfigurationError.exit_code))
    assert {LaunchError.exit_code, TooManyDeathsError.exit_code} & {0, ConfigurationError.exit_code} == set()


def test_kubernetes_grace_period_covers_the_shutdown_timeout() -> None:
    [container] = parse_pod_spec()["containers"]
    timeout = get_flag_value(container["args"], "--shutdown-timeout")
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert parse_pod_spec()["terminationGracePeriodSeconds"] >= pause + timeout + 2 * EXIT_MARGIN_SECONDS


def test_kubernetes_probes_use_existing_paths_and_the_port() -> None:
    [container] = parse_pod_spec()["containers"]
    [port] = container["ports"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/startup", "liveness": "/live", "readiness": "/ready"}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert port["containerPort"] == get_flag_value(container["args"], "--port")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_analyze_accepts_the_unit(tmp_path: Path) -> None:
    [text] = find_code_blocks(DEPLOY_PAGE, "ini")
    (tmp_path / "weft.service").write_text(text.replace("/opt/weft/bin/weft", shutil.which("true") or ""))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / "weft.service"],
                             capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "weft.service" in line] == []
    assert checked.returncode == 0
