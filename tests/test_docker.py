"""The Dockerfile and the scripts of the image. The image itself is not built."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
SCRIPTS_FOLDER = REPOSITORY_ROOT / "deploy/docker"
DOCKERFILE_STEPS = [line.split(maxsplit=1)
                    for line in (REPOSITORY_ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines() if line
                    and not line.startswith("#")]
MAPPED_VARIABLES = ("MODEL_ID", "REVISION", "QUANTIZE", "NUM_SHARD", "TRUST_REMOTE_CODE", "PORT")


def get_step_arguments(instruction: str) -> str:
    [arguments] = [rest for first, rest in DOCKERFILE_STEPS if first == instruction]
    return arguments


def parse_env_step() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in get_step_arguments("ENV").split())


def run_script(name: str, *arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPTS_FOLDER / name, *arguments], capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"]} | environment)


def write_fake_program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a shell script; return environment variables with which it is found first."""
    (path := folder / name).write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


# -- the Dockerfile


def test_every_dockerfile_script_exists_and_is_executable() -> None:
    text = (REPOSITORY_ROOT / "Dockerfile").read_text()
    named = set(re.findall(r"/opt/weft/(\S+\.sh)", text))
    assert named == {path.name for path in SCRIPTS_FOLDER.iterdir()}
    assert all(os.access(SCRIPTS_FOLDER / name, os.X_OK) for name in named)
    for word, rest in DOCKERFILE_STEPS:
        assert word != "RUN" or re.fullmatch(r'(PIP_ARGS="\$PIP_ARGS" )?/opt/weft/\w+\.sh [/\w: ]+', rest)


def test_compiler_is_installed_and_package_lists_are_removed(tmp_path: Path) -> None:
    """Triton needs a C compiler on a GPU."""
    (lists := tmp_path / "lists").mkdir()
    (lists / "some").write_text("packages")
    done = run_script("compiler.sh", lists, **write_fake_program(tmp_path, "apt-get", 'echo "$@"'))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["update", "install --yes --no-install-recommends gcc libc6-dev"]
    assert list(lists.iterdir()) == []


def test_dockerignore_includes_exactly_the_copied_files() -> None:
    ignored, *kept = (REPOSITORY_ROOT / ".dockerignore").read_text().split()
    sources = {name for word, rest in DOCKERFILE_STEPS if word == "COPY" for name in rest.split()[:-1]}
    assert ignored == "*"
    assert {name.rstrip("/") for name in sources} == {line.removeprefix("!") for line in kept}
    assert "ls $(DIST)/weft-*.whl" in (REPOSITORY_ROOT / "Makefile").read_text()


def test_image_has_port_data_folder_and_entrypoint_of_tgi() -> None:
    assert parse_env_step()["PORT"] == get_step_arguments("EXPOSE") == "80"
    assert parse_env_step()["HF_HOME"] == "/data"
    assert get_step_arguments("ENTRYPOINT") == '["/opt/weft/entrypoint.sh"]'


def test_image_user_is_not_root_and_owns_the_models_folder() -> None:
    assert get_step_arguments("USER") == "1000:1000"
    assert ["RUN",
            f"/opt/weft/prepare.sh {parse_env_step()['HF_HOME']} {get_step_arguments('USER')}"] in DOCKERFILE_STEPS


# -- its scripts


def test_prepare_script_creates_the_folder_with_its_owner(tmp_path: Path) -> None:
    done = run_script("prepare.sh", tmp_path / "a/b", f"{os.getuid()}:{os.getgid()}")
    assert (done.returncode, (tmp_path / "a/b").is_dir(), done.stderr) == (0, True, "")


def test_install_script_installs_the_wheel_with_constraints(tmp_path: Path) -> None:
    path_variable = write_fake_program(tmp_path, "python3", 'printf "%s\\n" "$@"')
    wheel = tmp_path / "weft-1.0-py3-none-any.whl"
    wheel.touch()
    done = run_script("install.sh", tmp_path, PIP_ARGS="--one 1", **path_variable)
    assert done.stdout.split()[:3] == ["-m", "pip", "install"]
    assert done.stdout.split()[-5:] == ["--one", "1", "-c", f"{tmp_path}/constraints.txt", f"{wheel}[otel,s3]"]


@pytest.mark.parametrize("wheels", [(), ("weft-1.whl", "weft-2.whl")])
def test_install_script_explains_when_there_is_not_exactly_one_wheel(tmp_path: Path, wheels: tuple[str, ...]) -> None:
    for name in wheels:
        (tmp_path / name).touch()
    done = run_script("install.sh", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"weft: {tmp_path} must hold one wheel, found {tmp_path}/weft-")


@pytest.fixture
def run_entrypoint(tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Return a function that runs the entry point and returns the launcher's arguments and its mapped variables."""
    path_variable = write_fake_program(tmp_path, "text-generation-launcher", 'printf "%s\\n" "$@" --; env')
    write_fake_program(tmp_path, "lorax-launcher", 'printf "%s\\n" lorax "$@" --; env')

    def run_with_arguments(*arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
        done = run_script("entrypoint.sh", *arguments, **path_variable | environment)
        assert (done.returncode, done.stderr) == (0, "")
        words, _, environment_lines = done.stdout.partition("--\n")
        variables = dict(line.split("=", 1) for line in environment_lines.splitlines())
        return words.split(), {name: variables[name] for name in MAPPED_VARIABLES if name in variables}
    return run_with_arguments


def test_image_arguments_are_launcher_flags(run_entrypoint: Callable[..., object]) -> None:
    assert run_entrypoint("--model-id", "org/name", PORT="80") == (["--model-id", "org/name"], {"PORT": "80"})


def test_sagemaker_variables_become_launcher_variables(run_entrypoint: Callable[..., object]) -> None:
    sagemaker_variables = {"HF_MODEL_ID": "org/name", "HF_MODEL_REVISION": "v2", "HF_MODEL_QUANTIZE": "awq",
                           "SM_NUM_GPUS": "4", "HF_MODEL_TRUST_REMOTE_CODE": "false", "PORT": "80"}
    assert run_entrypoint("serve", **sagemaker_variables) == ([], {
        "MODEL_ID": "org/name", "REVISION": "v2", "QUANTIZE": "awq", "NUM_SHARD": "4", "TRUST_REMOTE_CODE": "false",
        "PORT": "8080"})


def test_sagemaker_can_use_another_launcher(run_entrypoint: Callable[..., object]) -> None:
    assert run_entrypoint("--eager", WEFT_LAUNCHER="lorax-launcher") == (["lorax", "--eager"], {})
    assert run_entrypoint("serve", WEFT_LAUNCHER="lorax-launcher", HF_MODEL_ID="org/name") == (
        ["lorax"], {"MODEL_ID": "org/name", "PORT": "8080"})


def test_unset_sagemaker_variables_are_left_out(run_entrypoint: Callable[..., object]) -> None:
    assert run_entrypoint("serve", HF_MODEL_ID="org/name", SM_NUM_GPUS="0") == (
        [], {"MODEL_ID": "org/name", "PORT": "8080"})


class FakeHealthHandler(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def health_port() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), FakeHealthHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_healthcheck_script_follows_the_health_status(
        health_port: str, monkeypatch: pytest.MonkeyPatch, status: int, code: int) -> None:
    monkeypatch.setattr(FakeHealthHandler, "status", status)
    done = run_script("healthcheck.sh", PORT=health_port)
    assert (done.returncode, done.stderr.count("\n")) == (code, code)


@pytest.mark.slow
def test_healthcheck_script_fails_without_a_server() -> None:
    done = run_script("healthcheck.sh", PORT="1")
    assert done.returncode == 1
    assert done.stderr.startswith("weft: not healthy: ")
