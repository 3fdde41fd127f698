"""The examples on the deployment pages work as written: files parse, flags exist, timeouts are consistent."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.settings import SETTING_GROUPS
from launcher.supervisor.supervisor import EXIT_MARGIN_SECONDS, ConfigurationError, LaunchError, TooManyDeathsError
from router.config import API_KEY_ENV
from router.telemetry.metric_definitions import all_metric_definitions
from router.text.prompt_encoder import TokenLimits

DOCS_FOLDER = Path(__file__).parents[1] / "docs"
KUBERNETES_FOLDER = DOCS_FOLDER.parent / "deploy" / "kubernetes"
DEPLOY_PAGE = (DOCS_FOLDER / "deploy.md").read_text()
KUBERNETES_PAGE = (DOCS_FOLDER / "guides/kubernetes.md").read_text()
SERVE_FLAGS = {flag for settings in SETTING_GROUPS.values() for item in settings for flag in item.flags}


def find_code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def parse_systemd_unit() -> dict[str, str]:
    [text] = find_code_blocks(DEPLOY_PAGE, "ini")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def load_manifest(name: str) -> dict[str, Any]:
    """Return the one manifest of a file in deploy/kubernetes."""
    return dict(yaml.safe_load((KUBERNETES_FOLDER / name).read_text()))


def load_pod_spec(name: str) -> dict[str, Any]:
    template = load_manifest(name)["spec"]["template"]
    return dict(template.get("spec", template))


POD_SPECS = ["base/deployment.yaml", "kserve.yaml"]


def iter_commands() -> Iterator[list[str]]:
    """Yield every command line of weft on the two pages, split into words."""
    for block in find_code_blocks(DEPLOY_PAGE + KUBERNETES_PAGE, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.search(r"\bweft (serve|doctor)\b.*", line):
                yield match[0].split()[1:]
    yield parse_systemd_unit()["ExecStart"].split()[1:]
    for name in POD_SPECS:
        yield load_pod_spec(name)["containers"][0]["args"]


def test_flags_on_the_deployment_pages_exist() -> None:
    commands = list(iter_commands())
    assert len(commands) >= 6
    for _, *words in commands:
        assert {word for word in words if word.startswith("-")} <= SERVE_FLAGS


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


@pytest.mark.parametrize("name", POD_SPECS)
def test_kubernetes_grace_period_covers_the_shutdown_timeout(name: str) -> None:
    [container] = load_pod_spec(name)["containers"]
    seconds = sum(get_flag_value(container["args"], flag) for flag in ("--shutdown-delay", "--shutdown-timeout"))
    assert load_pod_spec(name)["terminationGracePeriodSeconds"] >= seconds + 2 * EXIT_MARGIN_SECONDS


@pytest.mark.parametrize("name", POD_SPECS)
def test_kubernetes_shutdown_delay_outlasts_a_readiness_probe(name: str) -> None:
    [container] = load_pod_spec(name)["containers"]
    probe = container["readinessProbe"]
    assert get_flag_value(container["args"], "--shutdown-delay") > probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize("name", POD_SPECS)
def test_kubernetes_probes_use_existing_paths_and_the_port(name: str) -> None:
    [container] = load_pod_spec(name)["containers"]
    [port] = container["ports"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/startup", "liveness": "/live", "readiness": "/ready"}
    assert {probe["port"] for probe in probes.values()} <= {port["name"], port["containerPort"]}
    assert port["containerPort"] == get_flag_value(container["args"], "--port")


def test_every_pod_that_listens_to_others_takes_its_key_from_a_secret_and_none_is_shipped() -> None:
    manifests = [manifest for path in KUBERNETES_FOLDER.rglob("*.yaml")
                 for manifest in yaml.safe_load_all(path.read_text())]
    assert [manifest for manifest in manifests if manifest.get("kind") == "Secret"] == []
    listening = [container for manifest in manifests for container in iter_containers(manifest)
                 if "0.0.0.0" in container.get("args", ())]
    assert len(listening) == 3
    # A secret that is not `optional` must exist before its pod starts.
    assert [container["envFrom"] for container in listening] == 3 * [[{"secretRef": {"name": "weft"}}]]
    for page in (KUBERNETES_PAGE, (KUBERNETES_FOLDER / "README.md").read_text()):
        assert f"kubectl create secret generic weft --from-literal={API_KEY_ENV}=" in page


def iter_containers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the containers in a manifest, at any depth."""
    if isinstance(value, dict):
        yield from value.get("containers", ())
        for item in value.values():
            yield from iter_containers(item)
    elif isinstance(value, list):
        for item in value:
            yield from iter_containers(item)


def test_kubernetes_selectors_find_the_pods_and_their_port() -> None:
    deployment, pool = load_manifest("base/deployment.yaml"), load_manifest("gateway/inferencepool.yaml")
    [endpoint] = load_manifest("monitoring/podmonitor.yaml")["spec"]["podMetricsEndpoints"]
    [service_port] = load_manifest("base/service.yaml")["spec"]["ports"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels == load_manifest("base/service.yaml")["spec"]["selector"]
    assert {"matchLabels": labels} == deployment["spec"]["selector"] == pool["spec"]["selector"] == load_manifest(
        "monitoring/podmonitor.yaml")["spec"]["selector"]
    assert {service_port["targetPort"], endpoint["port"]} == {port["name"]}
    assert pool["spec"]["targetPorts"] == [{"number": port["containerPort"]}]
    [rule] = load_manifest("gateway/httproute.yaml")["spec"]["rules"]
    assert rule["backendRefs"] == [{"group": "inference.networking.k8s.io", "kind": pool["kind"],
                                    "name": pool["metadata"]["name"]}]


def test_kubernetes_autoscaler_asks_for_metrics_that_the_adapter_makes_of_ours() -> None:
    autoscaler, values = load_manifest("autoscaling/hpa.yaml"), load_manifest("autoscaling/prometheus-adapter.yaml")
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == load_manifest("base/deployment.yaml")["metadata"]["name"]
    rules = {rule["name"]["as"]: rule["seriesQuery"].partition("{")[0] for rule in values["rules"]["custom"]}
    assert {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]} == rules.keys()
    families = {family.name for family in all_metric_definitions(TokenLimits(1000, 4000), 1, with_adapters=True)}
    assert set(rules.values()) <= families
    [dropped] = load_manifest("monitoring/podmonitor.yaml")["spec"]["podMetricsEndpoints"][0]["metricRelabelings"]
    assert dropped["regex"] in families


def test_kustomizations_name_existing_files_and_all_of_them() -> None:
    for path in KUBERNETES_FOLDER.rglob("kustomization.yaml"):
        resources = yaml.safe_load(path.read_text())["resources"]
        assert all((path.parent / resource).exists() for resource in resources), path
        others = {other.name for other in path.parent.glob("*.yaml")} - {path.name, "prometheus-adapter.yaml"}
        assert others == {resource for resource in resources if not resource.startswith("..")}, path


PROXY_FILES = sorted(path for path in (KUBERNETES_FOLDER.parent / "proxies").iterdir() if path.suffix != ".md")


def load_compose_services() -> dict[str, Any]:
    return dict(yaml.safe_load((KUBERNETES_FOLDER.parent / "compose/compose.yaml").read_text())["services"])


def test_compose_starts_the_replicas_that_the_proxies_name() -> None:
    services = load_compose_services()
    replicas = services.keys() - {"proxy"}
    assert len(PROXY_FILES) == 4
    for path in PROXY_FILES:
        assert set(re.findall(r"\b(weft-\d)(?::|, port_value: )3000", path.read_text())) == replicas, path
    for name in replicas:
        arguments = services[name]["command"]
        assert {word for word in arguments if word.startswith("-")} <= SERVE_FLAGS
        seconds = sum(get_flag_value(arguments, flag) for flag in ("--shutdown-delay", "--shutdown-timeout"))
        assert float(services[name]["stop_grace_period"].removesuffix("s")) >= seconds + 2 * EXIT_MARGIN_SECONDS
        assert services[name]["environment"]["PORT"] == "3000"
    source, _, _ = services["proxy"]["volumes"][0].partition(":")
    assert (KUBERNETES_FOLDER.parent / "compose" / source).resolve() in PROXY_FILES


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_analyze_accepts_the_unit(tmp_path: Path) -> None:
    [text] = find_code_blocks(DEPLOY_PAGE, "ini")
    (tmp_path / "weft.service").write_text(text.replace("/opt/weft/bin/weft", shutil.which("true") or ""))
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / "weft.service"],
                             capture_output=True, text=True, check=False)
    assert [line for line in checked.stderr.splitlines() if "weft.service" in line] == []
    assert checked.returncode == 0
