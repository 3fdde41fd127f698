"""Tests of `weft download` and of the start of `weft serve`: processes, signals, and no network use when offline."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.process_list import list_child_pids, read_command_line
from support.servers.fake_hub import COMMIT, FakeHub

from launcher.hub.download_runner import DownloadRequest, find_needed_download, make_download_request
from launcher.hub.resolve import find_model

WEIGHTS_FILE = "model.safetensors"
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', WEIGHTS_FILE: os.urandom(100_000)}
# Reports every connection, address lookup and new process on stderr.
AUDITED_PROGRAM = r"""
import sys
def watch(event, arguments):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.posix_spawn"}:
        sys.stderr.write(f"{event}\n")
sys.addaudithook(watch)
from launcher.cli import main
main()
"""


class WeftCommandHarness:
    """Runner of `weft` with a fake Hub and an empty home folder."""

    def __init__(self, fake_hub: FakeHub, home: Path) -> None:
        self.fake_hub, self.cache = fake_hub, home / "hub"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
        self.variables = inherited | {"HF_HOME": str(home), "HF_ENDPOINT": fake_hub.url, "NO_PROXY": "*"}

    def start_weft(self, *arguments: str, program: tuple[str, ...] = ("-m", "launcher.cli"),
                   **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-P", *program, *arguments], env=self.variables | variables, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for_exit(self, process: "subprocess.Popen[str]") -> tuple[int, str, str]:
        output, errors = process.communicate()
        return process.returncode, output, errors

    def run_weft(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        return self.wait_for_exit(self.start_weft(*arguments, **variables))

    def run_audited_weft(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        return self.wait_for_exit(self.start_weft(*arguments, program=("-c", AUDITED_PROGRAM), **variables))

    def get_partial_file_path(self) -> Path:
        return self.cache / "models--org--name" / "blobs" / f"{self.fake_hub.compute_etag(WEIGHTS_FILE)}.incomplete"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[WeftCommandHarness]:
    with FakeHub(FILES) as fake:
        yield WeftCommandHarness(fake, tmp_path)


def make_hub_environment(tmp_path: Path, *, has_model: bool = False, **variables: str) -> dict[str, str]:
    """Return an environment whose cache is empty, or holds one model if `has_model`."""
    if has_model:
        (snapshot := tmp_path / "models--org--name" / "snapshots" / COMMIT).mkdir(parents=True)
        for name, content in FILES.items():
            (snapshot / name).write_bytes(content)
    return {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": "http://hub"} | variables


# -- whether a download is needed


def test_missing_model_gives_a_download_request(tmp_path: Path) -> None:
    environment = make_hub_environment(tmp_path, HF_TOKEN="hf_secret", HF_HUB_DISABLE_PROGRESS_BARS="1")
    expected = DownloadRequest("org/name", "main", str(tmp_path), "http://hub", "weft/1", hides_progress=True,
                               missing_folder=str(Path("org/name").absolute()))
    assert find_needed_download("org/name", "", environment, "weft/1") == expected


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "nonsense"}])
def test_present_model_needs_no_request(tmp_path: Path, variables: dict[str, str]) -> None:
    assert find_needed_download("org/name", COMMIT, make_hub_environment(tmp_path, has_model=True, **variables),
                                "weft/1") is None


def test_incomplete_folder_is_not_replaced_by_a_hub_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config.json"):
        find_needed_download(str(tmp_path), "main", make_hub_environment(tmp_path), "weft/1")


def test_offline_error_says_what_is_missing_and_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no model org/name: .*; HF_HUB_OFFLINE is set, so nothing is"):
        find_needed_download("org/name", "main", make_hub_environment(tmp_path, HF_HUB_OFFLINE="1"), "weft/1")


@pytest.mark.parametrize(("name", "revision", "line"), [
    ("/folder", "main", "a model at the Hub has a name such as org/name, got /folder"),
    ("org/name", "../main", "--revision must be a branch, a tag or a commit"),
    ("weft/demo", "main", "weft/demo comes with weft, so there is nothing to download"),
])
def test_invalid_model_names_are_rejected(tmp_path: Path, name: str, revision: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        make_download_request(name, revision, make_hub_environment(tmp_path), "weft/1")


# -- processes


@pytest.mark.slow
def test_download_prints_the_folder_found_later_without_the_hub(harness: WeftCommandHarness) -> None:
    code, output, errors = harness.run_audited_weft("download", "org/name", HF_TOKEN="hf_secret",
                                                    HF_HUB_DISABLE_PROGRESS_BARS="1")
    assert (code, output.strip()) == (0, find_model("org/name", "main", harness.cache).folder)
    started, message = errors.splitlines()
    assert "subprocess.Popen" in started  # the audit hook works
    assert message.startswith("weft: org/name is here: commit 01234567, 3 files, 100.0 kB, ")
    assert {request.token for request in harness.fake_hub.received_requests
            if "/store" not in request.path} == {"Bearer hf_secret"}


@pytest.mark.slow
def test_offline_command_opens_no_connection_or_process(harness: WeftCommandHarness) -> None:
    line = "HF_HUB_OFFLINE is set, so nothing is downloaded\n"
    assert harness.run_audited_weft("download", "org/name", HF_HUB_OFFLINE="1") == (2, "", f"weft: {line}")
    code, _, errors = harness.run_audited_weft("serve", "org/name", HF_HUB_OFFLINE="1")
    assert (code, errors.partition(": looked")[0], errors.endswith(f"; {line}")) == (
        2, "weft: there is no model org/name", True)
    assert harness.fake_hub.received_requests == []


@pytest.mark.slow
def test_serving_an_unknown_model_is_a_one_line_error(harness: WeftCommandHarness) -> None:
    code, output, errors = harness.run_weft("serve", "org/other", "--port", "0")
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"weft: there is no model org/other at {harness.fake_hub.url}, or it is private")
    assert errors.endswith(f"; nor is there a folder {Path.cwd()}/org/other\n")


@pytest.mark.slow
def test_taken_port_is_reported_before_the_download(harness: WeftCommandHarness) -> None:
    code, _, errors = harness.run_weft("serve", "org/name", "--port", harness.fake_hub.url.rpartition(":")[2])
    assert (code, harness.fake_hub.received_requests) == (1, [])
    assert errors.startswith("weft: cannot listen on 127.0.0.1:")


@pytest.mark.slow
def test_damaged_file_gives_exit_code_1(harness: WeftCommandHarness) -> None:
    harness.fake_hub.corrupted_files.add(WEIGHTS_FILE)
    code, _, errors = harness.run_weft("download", "org/name")
    assert (code, errors.count("\n")) == (1, 2)
    assert errors.splitlines()[1].startswith("weft: model.safetensors of org/name arrived damaged (sha256 ")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_stopped_download_ends_at_once_and_can_be_resumed(
        harness: WeftCommandHarness, number: signal.Signals, code: int) -> None:
    harness.fake_hub.stall_after_bytes[WEIGHTS_FILE] = 60_000
    process = harness.start_weft("serve", "org/name", "--port", "0", HF_TOKEN="hf_secret")
    assert harness.fake_hub.stall_started.wait(60)
    while harness.get_partial_file_path().stat().st_size < 60_000:
        pass
    children = list_child_pids(process.pid)
    assert children
    assert not any("hf_secret" in argument for pid in [process.pid, *children] for argument in read_command_line(pid))
    process.send_signal(number)
    assert harness.wait_for_exit(process) == (code, "", "weft: downloading org/name: 0 %, 0 B of 100.0 kB\n")
    assert harness.run_weft("download", "org/name")[0] == 0
    assert harness.fake_hub.count_requests("GET", "/store", "bytes=60000-") == 1


@pytest.mark.slow
def test_concurrent_downloads_transfer_once(harness: WeftCommandHarness) -> None:
    both = [harness.start_weft("download", "org/name") for _ in range(2)]
    assert [harness.wait_for_exit(process)[0] for process in both] == [0, 0]
    assert harness.fake_hub.count_requests("GET", "/store") == 1
