"""The Dockerfile and the scripts of the image. The image itself is not built."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "deploy/docker"
STEPS = [line.split(maxsplit=1) for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
         if line and not line.startswith("#")]
MAPPED = ("MODEL_ID", "REVISION", "QUANTIZE", "NUM_SHARD", "TRUST_REMOTE_CODE", "PORT")


def step(word: str) -> str:
    [arguments] = [rest for first, rest in STEPS if first == word]
    return arguments


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in step("ENV").split())


def run(name: str, *arguments: str | Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SCRIPTS / name, *arguments], capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"]} | environment)


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Write a shell script; return environment variables with which it is found first."""
    (path := folder / name).write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


# -- the Dockerfile


def test_every_step_is_a_script_that_is_there_and_can_be_run() -> None:
    text = (ROOT / "Dockerfile").read_text()
    named = set(re.findall(r"/opt/weft/(\S+\.sh)", text))
    assert named == {path.name for path in SCRIPTS.iterdir()}
    assert all(os.access(SCRIPTS / name, os.X_OK) for name in named)
    for word, rest in STEPS:
        assert word != "RUN" or re.fullmatch(r'(PIP_ARGS="\$PIP_ARGS" )?/opt/weft/\w+\.sh [/\w: ]+', rest)


def test_a_compiler_is_installed_and_the_lists_are_not_kept(tmp_path: Path) -> None:
    """Triton needs a C compiler on a GPU."""
    (lists := tmp_path / "lists").mkdir()
    (lists / "some").write_text("packages")
    done = run("compiler.sh", lists, **program(tmp_path, "apt-get", 'echo "$@"'))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["update", "install --yes --no-install-recommends gcc libc6-dev"]
    assert list(lists.iterdir()) == []


def test_what_is_copied_is_let_through_to_docker() -> None:
    ignored, *kept = (ROOT / ".dockerignore").read_text().split()
    sources = {name for word, rest in STEPS if word == "COPY" for name in rest.split()[:-1]}
    assert ignored == "*"
    assert {name.rstrip("/") for name in sources} == {line.removeprefix("!") for line in kept}
    assert "ls $(DIST)/weft-*.whl" in (ROOT / "Makefile").read_text()


def test_it_looks_like_the_image_that_it_replaces() -> None:
    assert variables()["PORT"] == step("EXPOSE") == "80"
    assert variables()["HF_HOME"] == "/data"
    assert step("ENTRYPOINT") == '["/opt/weft/entrypoint.sh"]'


def test_whoever_serves_is_not_root_and_owns_the_folder_of_the_models() -> None:
    assert step("USER") == "1000:1000"
    assert ["RUN", f"/opt/weft/prepare.sh {variables()['HF_HOME']} {step('USER')}"] in STEPS


# -- its scripts


def test_a_folder_is_made_and_given_away(tmp_path: Path) -> None:
    done = run("prepare.sh", tmp_path / "a/b", f"{os.getuid()}:{os.getgid()}")
    assert (done.returncode, (tmp_path / "a/b").is_dir(), done.stderr) == (0, True, "")


def test_the_wheel_is_installed_in_the_versions_that_were_tested(tmp_path: Path) -> None:
    found = program(tmp_path, "python3", 'printf "%s\\n" "$@"')
    wheel = tmp_path / "weft-1.0-py3-none-any.whl"
    wheel.touch()
    done = run("install.sh", tmp_path, PIP_ARGS="--one 1", **found)
    assert done.stdout.split()[:3] == ["-m", "pip", "install"]
    assert done.stdout.split()[-5:] == ["--one", "1", "-c", f"{tmp_path}/constraints.txt", f"{wheel}[otel]"]


@pytest.mark.parametrize("wheels", [(), ("weft-1.whl", "weft-2.whl")])
def test_without_just_one_wheel_it_is_said_what_to_do(tmp_path: Path, wheels: tuple[str, ...]) -> None:
    for name in wheels:
        (tmp_path / name).touch()
    done = run("install.sh", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"weft: {tmp_path} must hold one wheel, found {tmp_path}/weft-")


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Return a function that runs the entry point and returns the launcher's arguments and its mapped variables."""
    found = program(tmp_path, "text-generation-launcher", 'printf "%s\\n" "$@" --; env')
    program(tmp_path, "lorax-launcher", 'printf "%s\\n" lorax "$@" --; env')

    def start(*arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
        done = run("entrypoint.sh", *arguments, **found | environment)
        assert (done.returncode, done.stderr) == (0, "")
        words, _, told = done.stdout.partition("--\n")
        given = dict(line.split("=", 1) for line in told.splitlines())
        return words.split(), {name: given[name] for name in MAPPED if name in given}
    return start


def test_what_follows_the_image_s_name_are_flags_of_the_launcher(launched: Callable[..., object]) -> None:
    assert launched("--model-id", "org/name", PORT="80") == (["--model-id", "org/name"], {"PORT": "80"})


def test_sagemaker_s_variables_become_those_of_the_launcher(launched: Callable[..., object]) -> None:
    given = {"HF_MODEL_ID": "org/name", "HF_MODEL_REVISION": "v2", "HF_MODEL_QUANTIZE": "awq", "SM_NUM_GPUS": "4",
             "HF_MODEL_TRUST_REMOTE_CODE": "false", "PORT": "80"}
    assert launched("serve", **given) == ([], {
        "MODEL_ID": "org/name", "REVISION": "v2", "QUANTIZE": "awq", "NUM_SHARD": "4", "TRUST_REMOTE_CODE": "false",
        "PORT": "8080"})


def test_another_launcher_may_be_named_under_sagemaker_too(launched: Callable[..., object]) -> None:
    assert launched("--eager", WEFT_LAUNCHER="lorax-launcher") == (["lorax", "--eager"], {})
    assert launched("serve", WEFT_LAUNCHER="lorax-launcher", HF_MODEL_ID="org/name") == (
        ["lorax"], {"MODEL_ID": "org/name", "PORT": "8080"})


def test_what_sagemaker_does_not_say_is_left_open(launched: Callable[..., object]) -> None:
    assert launched("serve", HF_MODEL_ID="org/name", SM_NUM_GPUS="0") == (
        [], {"MODEL_ID": "org/name", "PORT": "8080"})


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_container_is_as_healthy_as_the_server_says(
        port: str, monkeypatch: pytest.MonkeyPatch, status: int, code: int) -> None:
    monkeypatch.setattr(Health, "status", status)
    done = run("healthcheck.sh", PORT=port)
    assert (done.returncode, done.stderr.count("\n")) == (code, code)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_not_healthy() -> None:
    done = run("healthcheck.sh", PORT="1")
    assert done.returncode == 1
    assert done.stderr.startswith("weft: not healthy: ")
