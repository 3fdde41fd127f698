"""The commands on docs/guides/several-hosts.md work as written, and the manifest for LeaderWorkerSet fits them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from launcher.settings import SETTING_GROUPS
from launcher.supervisor.supervisor import EXIT_MARGIN_SECONDS
from shard.tls_credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, SECRET_FILE, list_exposed_files, load_credentials

REPOSITORY_ROOT = Path(__file__).parents[1]
PAGE = (REPOSITORY_ROOT / "docs/guides/several-hosts.md").read_text()
MANIFEST = (REPOSITORY_ROOT / "deploy/kubernetes/leaderworkerset.yaml").read_text()
SERVE_FLAGS = {flag for settings in SETTING_GROUPS.values() for item in settings for flag in item.flags}


def find_shell_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def read_pod_specs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specs of leader and worker."""
    workload = next(iter(yaml.safe_load_all(MANIFEST)))
    template = workload["spec"]["leaderWorkerTemplate"]
    return template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]


def test_credentials_made_by_the_page_are_accepted(tmp_path: Path) -> None:
    [block] = [block for block in find_shell_blocks() if "openssl" in block]
    subprocess.run(["bash", "-euc", block], cwd=tmp_path, check=True, capture_output=True)
    assert len(load_credentials(str(tmp_path / "group")).secret) == 48
    assert list_exposed_files(str(tmp_path / "group")) == []


def test_flags_on_the_page_and_in_the_manifest_exist() -> None:
    commands = [match.split() for block in find_shell_blocks()
                for match in re.findall(r"\bweft serve .*", block.replace("\\\n", " "))]
    assert len(commands) == 3
    commands += [spec["containers"][0]["args"] for spec in read_pod_specs()]
    for words in commands:
        assert {word for word in words if word.startswith("-")} <= SERVE_FLAGS


def test_all_pods_of_the_manifest_have_one_model_and_one_folder_of_credentials() -> None:
    leader, worker = read_pod_specs()
    first, other = (spec["containers"][0] for spec in (leader, worker))
    assert [word for word in first["args"] if word not in {"--hostname", "0.0.0.0", "--port", "3000"}] == other["args"]
    assert (first["image"], first["resources"], first["volumeMounts"], leader["volumes"]) == (
        other["image"], other["resources"], other["volumeMounts"], worker["volumes"])
    folder = first["args"][first["args"].index("--shard-credentials") + 1]
    assert folder in [mount["mountPath"] for mount in first["volumeMounts"]]


def test_pods_of_the_manifest_have_time_for_their_requests() -> None:
    for spec in read_pod_specs():
        arguments = spec["containers"][0]["args"]
        timeout = float(arguments[arguments.index("--shutdown-timeout") + 1])
        assert spec["containers"][0]["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "5"]}}
        assert spec["terminationGracePeriodSeconds"] >= 5 + timeout + 2 * EXIT_MARGIN_SECONDS


def test_only_the_group_of_the_pods_may_read_the_secrets_of_the_manifest() -> None:
    for spec in read_pod_specs():
        [volume] = [volume for volume in spec["volumes"] if volume["name"] == "group"]
        assert volume["projected"]["defaultMode"] == 0o440
        assert spec["securityContext"]["fsGroup"] == 1000


def test_manifest_keeps_the_leader_when_a_worker_is_lost() -> None:
    workload, service, policy = yaml.safe_load_all(MANIFEST)
    template = workload["spec"]["leaderWorkerTemplate"]
    assert template["restartPolicy"] == "None"
    assert service["spec"]["selector"] == template["leaderTemplate"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= service["spec"]["selector"].items()


def test_files_of_credentials_are_named_on_the_page_and_in_the_manifest() -> None:
    for name in (CERTIFICATE_FILE, KEY_FILE, CA_FILE, SECRET_FILE):
        assert name in PAGE
        assert name in MANIFEST
