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

ROOT = Path(__file__).parents[1]
OLD = """case "$*" in *version_info*) exit 1;; --version) echo "Python 3.9.2";; esac"""
WITHOUT_VENV = """case "$*" in *ensurepip*) exit 1;; *print*) echo python3.11-venv;; esac"""
GOOD = """case "$*" in "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; echo made >> log;;
*"pip install"*) echo "$*" >> log; [ ! -e no-network ];; esac"""

LOGGED = """case "$*" in *"import sys, torch"*) [ ! -e no-gpu ]; exit;; *install*) mkdir .gpu-site;; esac
echo "$*" >> log"""
SANITIZER = """#!/bin/sh
echo sanitized $PYTORCH_NO_CUDA_MEMORY_CACHING >> log
shift 6
exec "$@"
"""
WITH_TORCH, WITH_TRANSFORMERS = {"jinja2"}, {"numpy", "safetensors", "tokenizers"}
WITH_MACHINE = {"torch", "transformers"} | WITH_TORCH | WITH_TRANSFORMERS
FOR_TESTS = {"hypothesis", "pytest", "pytest-timeout"}


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)

    def python(self, program: str) -> None:
        (path := self.folder / "my python").write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run make as from a shell, even if the tests themselves are run by make."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        return subprocess.run(["make", "PYTHON=./my python", *arguments], cwd=self.folder, env=environment,
                              capture_output=True, text=True, check=False)

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a b" / "we ft")


def test_help_is_the_default_and_sets_nothing_up(checkout: Checkout) -> None:
    assert "make run" in checkout.make().stdout
    assert not (checkout.folder / ".venv").exists()


@pytest.mark.parametrize(("program", "line"), [
    (OLD, "weft: needs Python 3.11 or newer, found only Python 3.9.2; install"),
    (WITHOUT_VENV, "weft: ./my python has no venv module; install it (Debian, Ubuntu: apt install python3.11-venv)"),
    ("exit 127", "weft: needs Python 3.11 or newer, found none; install"),
])
def test_a_python_that_will_not_do_is_one_line(checkout: Checkout, program: str, line: str) -> None:
    checkout.python(program)
    made = checkout.make(".venv/ready")
    ours = [told for told in made.stderr.splitlines() if not told.startswith("make")]
    assert made.returncode != 0
    assert len(ours) == 1
    assert ours[0].startswith(line)


def test_the_set_up_is_made_once(checkout: Checkout) -> None:
    checkout.python(GOOD)
    told = checkout.make(".venv/ready", "PIP_ARGS=--one --two").stdout
    assert checkout.log()[0] == "made"
    assert checkout.log()[1].endswith("--one --two -c constraints.txt -e .[dev]")
    assert "GB" in told
    assert checkout.make(".venv/ready").returncode == 0
    assert len(checkout.log()) == 2


def test_a_set_up_that_was_interrupted_goes_on_where_it_was(checkout: Checkout) -> None:
    checkout.python(GOOD)
    (checkout.folder / "no-network").touch()
    assert "call make again" in checkout.make(".venv/ready").stderr
    (checkout.folder / "no-network").unlink()
    assert checkout.make(".venv/ready").returncode == 0
    assert [line.split()[0] for line in checkout.log()] == ["made", "-m", "-m"]


def test_packages_that_were_half_installed_are_installed_again(checkout: Checkout) -> None:
    checkout.python(GOOD)
    checkout.make(".venv/ready")
    for name, files in (("whole", ["METADATA", "INSTALLER"]), ("half", ["METADATA"])):
        (package := checkout.folder / f".venv/lib/python3.11/site-packages/{name}-1.0.dist-info").mkdir(parents=True)
        for file in files:
            (package / file).touch()
    (checkout.folder / ".venv/ready").unlink()
    checkout.make(".venv/ready")
    assert [path.name for path in checkout.folder.glob(".venv/lib/*/*/*")] == ["whole-1.0.dist-info"]


def test_an_environment_that_does_not_work_is_made_anew(checkout: Checkout) -> None:
    checkout.python(GOOD)
    (checkout.folder / ".venv/bin").mkdir(parents=True)
    (checkout.folder / ".venv/bin/python").symlink_to("/nowhere/python")
    assert checkout.make(".venv/ready").returncode == 0
    assert checkout.log()[0] == "made"


def test_new_requirements_are_installed(checkout: Checkout) -> None:
    checkout.python(GOOD)
    checkout.make(".venv/ready")
    later = (checkout.folder / ".venv/ready").stat().st_mtime + 10
    constraints = checkout.folder / "constraints.txt"
    os.utime(constraints, (later, later))
    assert checkout.make("-q", ".venv/ready").returncode == 1


@pytest.fixture
def machine(checkout: Checkout) -> Checkout:
    """Return a checkout whose fake Python has a GPU, with wheels to install."""
    checkout.python(LOGGED)
    (checkout.folder / ".gpu-wheels").mkdir()
    (checkout.folder / ".gpu-wheels/one.whl").touch()
    return checkout


def test_the_gpu_is_checked_with_wheels_that_were_there_before(machine: Checkout) -> None:
    assert machine.make("gpu-check").returncode == 0
    install, *tests = machine.log()
    assert install.endswith("--no-index --no-deps --target .gpu-site .gpu-wheels/one.whl")
    exact = "tests/gpu/test_exact.py"  # has a pytest run of its own
    assert [test.partition("--durations=10 ")[2] for test in tests] == [f"tests/gpu --ignore={exact}", exact]
    assert all("-m gpu" in test for test in tests)
    assert machine.make("gpu-check", "ARGS=tests/gpu/test_model.py").returncode == 0
    assert machine.log()[-1].endswith("--durations=10 tests/gpu/test_model.py")
    assert machine.make("gpu-check", "ARGS=-k adapters").returncode == 0
    assert machine.log()[-1].endswith("--durations=10 tests/gpu -k adapters")


def test_what_is_asked_of_a_gpu_is_asked_of_the_benchmark(machine: Checkout) -> None:
    assert machine.make("gpu-bench", "ARGS=served --streams 8").returncode == 0
    assert machine.log()[-1] == "-P -m benchmarks.gpu served --streams 8"


def test_kernels_run_under_a_sanitizer_where_there_is_one(
        machine: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = machine.make("gpu-memcheck")
    assert made.returncode != 0
    assert made.stderr.startswith("weft: there is no compute-sanitizer here")
    (sanitizer := tmp_path / "compute-sanitizer").write_text(SANITIZER)
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machine.make("gpu-memcheck").returncode == 0
    _, *ran = machine.log()[-7:]
    assert ran[::2] == ["sanitized 1"] * 3
    assert [test.rpartition("/")[2] for test in ran[1::2]] == ["test_attention.py", "test_fused.py", "test_adapters.py"]


@pytest.mark.parametrize(("change", "line"), [
    (lambda folder: (folder / "no-gpu").touch(), "weft: ./my python has no torch that sees a GPU; name one that has"),
    (lambda folder: shutil.rmtree(folder / ".gpu-wheels"), "weft: there are no wheels; call make gpu-wheels first"),
])
def test_a_machine_that_cannot_check_a_gpu_is_one_line(
        machine: Checkout, change: Callable[[Path], None], line: str) -> None:
    change(machine.folder)
    made = machine.make("gpu-check")
    assert made.returncode != 0
    assert made.stderr.startswith(line)
    assert machine.log() == []


def words(variable: str) -> set[str]:
    return set(re.search(rf"^{variable} := (.*?[^\\])\n", (ROOT / "Makefile").read_text(), re.DOTALL | re.MULTILINE)
               .group(1).replace("\\", " ").split())


def needed_by(name: str) -> Iterator[str]:
    for requirement in map(Requirement, requires(name) or []):
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.12", "extra": ""}):
            yield requirement.name


def test_the_wheels_for_a_gpu_are_all_that_it_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names, found = [Requirement(line).name for line in project["dependencies"]] + list(FOR_TESTS), set()
    while names:
        name = names.pop().lower().replace("_", "-")
        if name not in found | WITH_MACHINE:
            found.add(name)
            names += needed_by(name)
    assert words("GPU_PACKAGES") == found
