"""Tests of the checks that the doctor makes in its own process."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from launcher.doctor import checks
from launcher.doctor.findings import Finding
from launcher.supervisor.supervisor import bind_listener

INSTALLED_VERSIONS = {"aiohttp": "3.14.5", "torch": "2.13.0+cpu", "numpy": "1.26"}


def get_installed_version(name: str) -> str:
    if name not in INSTALLED_VERSIONS:
        raise PackageNotFoundError(name)
    return INSTALLED_VERSIONS[name]


@pytest.mark.parametrize(("installed", "requirement", "is_supported"), [
    ("3.14.5", "<4,>=3.14", True),
    ("3.13.9", "<4,>=3.14", False),
    ("4.0", "<4,>=3.14", False),
    ("2.13.0+cpu", ">=2.11", True),
    ("2.9.1", ">=2.11", False),
    ("1.0", "", True),
    ("1.0", "~=2.0,!=3", True),  # operators other than >= and < count as satisfied
])
def test_versions_are_compared_by_their_numbers(installed: str, requirement: str, is_supported: bool) -> None:
    assert checks.is_version_supported(installed, requirement) == is_supported


def test_satisfied_packages_are_one_line() -> None:
    [finding] = checks.check_packages(["aiohttp<4,>=3.14", "torch>=2.11", 'ruff>=1; extra == "dev"'],
                                      get_installed_version)
    assert str(finding) == "ok       packages       aiohttp 3.14.5, torch 2.13.0+cpu"


def test_old_or_missing_package_is_a_problem_with_a_command() -> None:
    old, missing = checks.check_packages(["numpy>=2.1, <3", "uvloop>=0.22"], get_installed_version)
    assert (old.state, old.text) == ("problem", "1.26 is installed, weft needs >=2.1, <3")
    assert old.cure == "pip install 'numpy>=2.1,<3'"
    assert missing.text == "nothing is installed, weft needs >=0.22"


def test_installed_packages_satisfy_the_requirements() -> None:
    assert {finding.state for finding in checks.check_packages()} == {"ok"}


def test_compiled_extensions_are_found() -> None:
    assert [(finding.subject, finding.state) for finding in checks.check_c_extensions({})] == [
        ("protobuf", "ok"), ("aiohttp", "ok")]


def test_package_without_its_compiled_extension_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "list_installed_files", lambda _: iter(["aiohttp/_http_parser.pyx"]))
    assert {finding.state for finding in checks.check_c_extensions({})} == {"warning"}


def test_variable_that_disables_an_extension_is_named() -> None:
    finding = next(iter(checks.check_c_extensions({"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"})))
    assert (finding.state, finding.cure) == ("warning", "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")


def test_driver_version_is_read_from_a_system_file(tmp_path: Path) -> None:
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX Kernel Module  570.86.15  Thu Jan 23\nGCC: 12\n")
    assert checks.read_nvidia_driver_version(tmp_path / "version") == "570.86.15"
    assert checks.read_nvidia_driver_version(tmp_path / "none") == ""


def test_small_shared_memory_matters_only_for_several_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MIN_SHARED_MEMORY_BYTES", 2**80)
    assert checks.check_shared_memory(1, tmp_path).state == "ok"
    assert "--shm-size" in checks.check_shared_memory(2, tmp_path).cure
    assert checks.check_shared_memory(2, tmp_path / "none").state == "warning"


def test_model_cache_with_little_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MIN_FREE_DISK_BYTES", 2**80)
    cache, _ = checks.check_hub_access({"HF_HOME": str(tmp_path / "not" / "there")})
    assert cache.state == "warning"
    assert cache.text.startswith(f"{tmp_path}/not/there/hub, ")


def test_unwritable_model_cache_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a file instead of a folder: root could write to any folder
    cache, _ = checks.check_hub_access({"HF_HOME": str(tmp_path / "file")})
    assert (cache.state, cache.text.split(", ")[1]) == ("warning", "so nothing can be downloaded")


@pytest.mark.parametrize(("variables", "words"), [
    ({}, "without a token"),
    ({"HF_TOKEN": "hf_secret"}, "with the token of HF_TOKEN"),
    ({"HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_secret"}, "not used, since HF_HUB_OFFLINE is set"),
    ({"TRANSFORMERS_OFFLINE": "yes"}, "not used, since TRANSFORMERS_OFFLINE is set"),
    ({"HF_HUB_OFFLINE": "0"}, "used for what the cache lacks"),
])
def test_hub_finding_never_shows_a_token(
        tmp_path: Path, variables: dict[str, str], words: str) -> None:
    _, hub = checks.check_hub_access({"HF_HOME": str(tmp_path)} | variables)
    assert words in hub.text
    assert "secret" not in str(hub)


def test_token_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_secret")
    _, hub = checks.check_hub_access({"HF_HOME": str(tmp_path)})
    assert hub.text == f"used for what the cache lacks, with the token of {tmp_path}/token"


def test_port_check_distinguishes_free_and_taken() -> None:
    with bind_listener("127.0.0.1", 0) as listener:
        listener.listen()
        number = listener.getsockname()[1]
        finding = checks.check_port("127.0.0.1", number)
    assert finding == Finding("port", "problem", f"cannot listen on 127.0.0.1:{number} (Address already in use)",
                              "choose another port with --port or another address with --hostname")
    assert checks.check_port("127.0.0.1", number).state == "ok"


@pytest.mark.parametrize(("answer", "state"), [(b'{"model_id": "org/name"}', "warning"), (b'{"a": 1}', "problem"),
                                               (b"[]", "problem"), (b"no JSON", "problem")])
def test_port_of_a_server_that_runs_is_only_a_warning(answer: bytes, state: str) -> None:
    class InfoHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/info" else 404)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), InfoHandler) as server:
        threading.Thread(target=server.handle_request).start()
        finding = checks.check_port("127.0.0.1", server.server_port)
    assert finding.state == state
    if state == "warning":
        assert finding.text == f"a server of org/name already answers at 127.0.0.1:{server.server_port}"
