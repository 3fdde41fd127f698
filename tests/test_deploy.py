"""The examples in docs/deploy.md work as written: files parse, flags exist, timeouts are consistent."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.cli import EXAMINED
from launcher.settings import GROUPS
from launcher.supervisor.supervisor import MARGIN, Failed, GaveUp, Misconfigured

TEXT = (Path(__file__).parents[1] / "docs/deploy.md").read_text()
SERVE = {flag for settings in GROUPS.values() for item in settings for flag in item.flags}
DOCTOR = {flag for settings in GROUPS.values() for item in settings if item.name in EXAMINED for flag in item.flags}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def unit() -> dict[str, str]:
    [text] = blocks("ini")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def pod() -> dict[str, Any]:
    [text] = blocks("yaml")
    *_, deployment = yaml.safe_load_all(text)
    return dict(deployment["spec"]["template"]["spec"])


def commands() -> Iterator[list[str]]:
    """Yield every command line of weft on the page, split into words."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.search(r"\bweft (serve|doctor)\b.*", line):
                yield found[0].split()[1:]
    yield unit()["ExecStart"].split()[1:]
    yield pod()["containers"][0]["args"]


def test_flags_on_the_page_exist() -> None:
    found = list(commands())
    assert len(found) >= 6
    for command, *words in found:
        flags = {word for word in words if word.startswith("-")}
        assert flags <= (SERVE if command == "serve" else DOCTOR)


def value(words: list[str], flag: str) -> float:
    return float(words[words.index(flag) + 1])


def test_systemd_waits_until_all_have_ended() -> None:
    timeout = value(unit()["ExecStart"].split(), "--shutdown-timeout")
    assert float(unit()["TimeoutStopSec"]) >= timeout + 2 * MARGIN
    assert unit()["KillMode"] == "mixed"


def test_systemd_starts_again_only_what_may_be_better_another_time() -> None:
    assert (unit()["Restart"], unit()["RestartPreventExitStatus"]) == ("on-failure", str(Misconfigured.code))
    assert {Failed.code, GaveUp.code} & {0, Misconfigured.code} == set()


def test_kubernetes_waits_until_all_have_ended() -> None:
    [container] = pod()["containers"]
    timeout = value(container["args"], "--shutdown-timeout")
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] >= pause + timeout + 2 * MARGIN


def test_kubernetes_asks_what_is_there_to_be_asked() -> None:
    [container] = pod()["containers"]
    [port] = container["ports"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/startup", "liveness": "/live", "readiness": "/ready"}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert port["containerPort"] == value(container["args"], "--port")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    [text] = blocks("ini")
    (tmp_path / "weft.service").write_text(text.replace("/opt/weft/bin/weft", shutil.which("true") or ""))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / "weft.service"],
                             capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "weft.service" in line] == []
    assert checked.returncode == 0
