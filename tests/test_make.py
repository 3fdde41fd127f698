"""The environment that `make` sets up, tested with a fake Python and pip in a path with blanks."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY_ROOT = Path(__file__).parents[1]
OLD_PYTHON = """case "$*" in *version_info*) exit 1;; --version) echo "Python 3.9.2";; esac"""
PYTHON_WITHOUT_VENV = """case "$*" in *ensurepip*) exit 1;; *print*) echo python3.11-venv;; esac"""
WORKING_PYTHON = """case "$*" in "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo made >> log;;
*"pip install"*) echo "$*" >> log; [ ! -e no-network ];; esac"""

GPU_PYTHON = """case "$*" in *"import sys, torch"*) [ ! -e no-gpu ]; exit;; *install*) mkdir .gpu-site;; esac
echo "$*" >> log"""
FAKE_SANITIZER = """#!/bin/sh
echo sanitized $PYTORCH_NO_CUDA_MEMORY_CACHING >> log
shift 6
exec "$@"
"""
TORCH_DEPENDENCIES, TRANSFORMERS_DEPENDENCIES = {"jinja2"}, {"numpy", "pyyaml", "safetensors", "tokenizers"}
PREINSTALLED_PACKAGES = {"torch", "transformers"} | TORCH_DEPENDENCIES | TRANSFORMERS_DEPENDENCIES
TEST_PACKAGES = {"hypothesis", "pytest", "pytest-timeout"}


class TemporaryCheckout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(REPOSITORY_ROOT / name, folder)

    def write_fake_python(self, program: str) -> None:
        (path := self.folder / "my python").write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)

    def run_make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run make as from a shell, even if the tests themselves are run by make."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(["make", "PYTHON=./my python", *arguments], cwd=self.folder, env=environment,
                              capture_output=True, text=True, check=False)

    def read_log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> TemporaryCheckout:
    return TemporaryCheckout(tmp_path / "a b" / "we ft")


def test_help_is_the_default_target_and_installs_nothing(checkout: TemporaryCheckout) -> None:
    assert "make run" in checkout.run_make().stdout
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize(("program", "line"), [
    (OLD_PYTHON, "weft: needs Python 3.11 or newer, found only Python 3.9.2; install"),
    (PYTHON_WITHOUT_VENV,
     "weft: ./my python has no venv module; install it (Debian, Ubuntu: apt install python3.11-venv)"),
    ("exit 127", "weft: needs Python 3.11 or newer, found none; install"),
])
def test_unusable_python_is_a_one_line_error(checkout: TemporaryCheckout, program: str, line: str) -> None:
    checkout.write_fake_python(program)
    made = checkout.run_make(".venv/ready")
    messages = [message for message in made.stderr.splitlines() if not message.startswith("make")]
    assert made.returncode != 0
    assert len(messages) == 1
    assert messages[0].startswith(line)


def test_environment_is_installed_once(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    output = checkout.run_make(".venv/ready", "PIP_ARGS=--one --two").stdout
    assert checkout.read_log()[0] == "made"
    assert checkout.read_log()[1].endswith("--one --two -c constraints.txt -e .[dev]")
    assert "torch: the build that PIP_ARGS selects" in output
    assert checkout.run_make(".venv/ready").returncode == 0
    assert len(checkout.read_log()) == 2


def test_serving_installs_no_development_tools(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    checkout.run_make(".venv/serving")
    assert checkout.read_log()[1].endswith(" -c constraints.txt -e .")
    checkout.run_make(".venv/ready")
    assert checkout.read_log()[-1].endswith(" -c constraints.txt -e .[dev]")
    assert checkout.run_make("-q", ".venv/serving").returncode == 0


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is an NVIDIA GPU, for which CUDA's build is taken")
@pytest.mark.parametrize(("program", "build", "is_named"), [
    (WORKING_PYTHON, "torch: for CPUs, 0.2 GB, since this machine has no NVIDIA GPU", True),
    (WORKING_PYTHON.replace("esac", "*urllib*) exit 1;; esac"), "torch: the build that pip chooses", False)],
    ids=["the index of CPU builds answers", "it does not"])
def test_torch_for_cpus_is_chosen_where_its_index_answers(
        checkout: TemporaryCheckout, program: str, build: str, is_named: bool) -> None:
    checkout.write_fake_python(program)
    assert build in checkout.run_make(".venv/serving").stdout
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu " in checkout.read_log()[1]) == is_named


def test_only_large_downloads_are_shown_of_an_install_and_its_end_if_it_fails(checkout: TemporaryCheckout) -> None:
    downloads = ("  Downloading torch-2.13.0.whl (196.6 MB)", "Downloading small.whl (1.2 MB)", "no space left")
    program = WORKING_PYTHON.replace('echo "$*" >> log;', f"printf '%s\\n' {' '.join(map(repr, downloads))};")
    checkout.write_fake_python(program)
    assert checkout.run_make(".venv/serving").stdout.splitlines()[2:] == [
        "weft: downloading torch-2.13.0.whl (196.6 MB)"]
    (checkout.folder / "no-network").touch()
    (checkout.folder / ".venv/serving").unlink()
    assert "no space left" in checkout.run_make(".venv/serving").stderr


def test_interrupted_install_continues_where_it_stopped(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    (checkout.folder / "no-network").touch()
    assert "call make again" in checkout.run_make(".venv/ready").stderr
    (checkout.folder / "no-network").unlink()
    assert checkout.run_make(".venv/ready").returncode == 0
    assert [line.split()[0] for line in checkout.read_log()] == ["made", "-m", "-m"]


def test_half_installed_packages_are_reinstalled(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    checkout.run_make(".venv/ready")
    for name, files in (("whole", ["METADATA", "INSTALLER"]), ("half", ["METADATA"])):
        (package := checkout.folder / f".venv/lib/python3.11/site-packages/{name}-1.0.dist-info").mkdir(parents=True)
        for file in files:
            (package / file).touch()
    (checkout.folder / ".venv/ready").unlink()
    checkout.run_make(".venv/ready")
    assert [path.name for path in checkout.folder.glob(".venv/lib/*/*/*")] == ["whole-1.0.dist-info"]


def test_broken_environment_is_recreated(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    (checkout.folder / ".venv/bin").mkdir(parents=True)
    (checkout.folder / ".venv/bin/python").symlink_to("/nowhere/python")
    assert checkout.run_make(".venv/ready").returncode == 0
    assert checkout.read_log()[0] == "made"


def test_new_requirements_trigger_an_install(checkout: TemporaryCheckout) -> None:
    checkout.write_fake_python(WORKING_PYTHON)
    checkout.run_make(".venv/ready")
    later = (checkout.folder / ".venv/ready").stat().st_mtime + 10
    constraints = checkout.folder / "constraints.txt"
    os.utime(constraints, (later, later))
    assert checkout.run_make("-q", ".venv/ready").returncode == 1


@pytest.fixture
def gpu_checkout(checkout: TemporaryCheckout) -> TemporaryCheckout:
    """Return a checkout whose fake Python has a GPU, with wheels to install."""
    checkout.write_fake_python(GPU_PYTHON)
    (checkout.folder / ".gpu-wheels").mkdir()
    (checkout.folder / ".gpu-wheels/one.whl").touch()
    return checkout


def test_gpu_check_installs_local_wheels_and_runs_gpu_tests(gpu_checkout: TemporaryCheckout) -> None:
    assert gpu_checkout.run_make("gpu-check").returncode == 0
    install, *tests = gpu_checkout.read_log()
    assert install.endswith("--no-index --no-deps --target .gpu-site .gpu-wheels/one.whl")
    exact = "tests/gpu/test_exact.py"  # has a pytest run of its own
    assert [test.partition("--durations=10 ")[2] for test in tests] == [f"tests/gpu --ignore={exact}", exact]
    assert all("-m gpu" in test for test in tests)
    assert gpu_checkout.run_make("gpu-check", "ARGS=tests/gpu/test_model.py").returncode == 0
    assert gpu_checkout.read_log()[-1].endswith("--durations=10 tests/gpu/test_model.py")
    assert gpu_checkout.run_make("gpu-check", "ARGS=-k adapters").returncode == 0
    assert gpu_checkout.read_log()[-1].endswith("--durations=10 tests/gpu -k adapters")


def test_gpu_bench_passes_its_arguments_to_the_benchmark(gpu_checkout: TemporaryCheckout) -> None:
    assert gpu_checkout.run_make("gpu-bench", "ARGS=served --streams 8").returncode == 0
    assert gpu_checkout.read_log()[-1] == "-P -m benchmarks.gpu served --streams 8"


def test_gpu_memcheck_runs_kernel_tests_under_the_sanitizer(
        gpu_checkout: TemporaryCheckout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = gpu_checkout.run_make("gpu-memcheck")
    assert made.returncode != 0
    assert made.stderr.startswith("weft: there is no compute-sanitizer here")
    (sanitizer := tmp_path / "compute-sanitizer").write_text(FAKE_SANITIZER)
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_checkout.run_make("gpu-memcheck").returncode == 0
    _, *ran = gpu_checkout.read_log()[-7:]
    assert ran[::2] == ["sanitized 1"] * 3
    assert [test.rpartition("/")[2] for test in ran[1::2]] == [
        "test_attention.py", "test_fused_ops.py", "test_adapters.py"]


@pytest.mark.parametrize(("change", "line"), [
    (lambda folder: (folder / "no-gpu").touch(), "weft: ./my python has no torch that sees a GPU; name one that has"),
    (lambda folder: shutil.rmtree(folder / ".gpu-wheels"), "weft: there are no wheels; call make gpu-wheels first"),
])
def test_unusable_gpu_setup_is_a_one_line_error(
        gpu_checkout: TemporaryCheckout, change: Callable[[Path], None], line: str) -> None:
    change(gpu_checkout.folder)
    made = gpu_checkout.run_make("gpu-check")
    assert made.returncode != 0
    assert made.stderr.startswith(line)
    assert gpu_checkout.read_log() == []


def read_make_variable(variable: str) -> set[str]:
    return set(re.search(rf"^{variable} := (.*?[^\\])\n", (REPOSITORY_ROOT / "Makefile").read_text(),
                         re.DOTALL | re.MULTILINE).group(1).replace("\\", " ").split())


def iter_requirements(name: str) -> Iterator[str]:
    for requirement in map(Requirement, requires(name) or []):
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.12", "extra": ""}):
            yield requirement.name


def test_gpu_packages_are_exactly_the_missing_dependencies() -> None:
    project = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text())["project"]
    names, missing = [Requirement(line).name for line in project["dependencies"]] + list(TEST_PACKAGES), set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in missing | PREINSTALLED_PACKAGES:
            missing.add(name)
            names += iter_requirements(name)
    assert read_make_variable("GPU_PACKAGES") == missing
