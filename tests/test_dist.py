"""The wheel that `make dist` builds and the source archive: contents, size, and serving from an installed wheel."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.servers.weft_process import run_weft_process

from launcher.demo.training.corpus.answer_styles import REWRITERS_BY_STYLE
from shard.native.compiler import find_compiler, is_supported_platform, library_file_name

REPOSITORY_ROOT = Path(__file__).parents[1]
TOP_LEVEL_PACKAGES = ("router", "shard", "launcher", "benchmarks")
MAX_ARCHIVE_BYTES = 10_000_000  # of which the bundled demo model takes eight million

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    # `-o` makes make skip the setup of an environment: the tests run in one.
    subprocess.run(["make", "-o", ".venv/ready", f"VENV={sys.executable} -P", f"DIST={folder}", "dist"],
                   cwd=REPOSITORY_ROOT, env=environment, check=True, capture_output=True)
    [path] = folder.glob("weft-*.whl")
    return path


def can_compile_kernels() -> bool:
    return is_supported_platform() and find_compiler() is not None


@pytest.fixture(scope="module")
def python_with_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment with the wheel; dependencies come from the current environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "-q",
                    "--no-index", "--no-deps", wheel], check=True)
    (find_site(folder) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


def find_site(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


def test_wheel_contains_demo_model_adapters_and_licenses(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    model = {f"launcher/demo/model/{name}" for name in (
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "README.md")}
    voices = {f"launcher/demo/adapters/{voice}/{name}" for voice in REWRITERS_BY_STYLE
              for name in ("adapter_config.json", "adapter_model.safetensors")}
    assert model | voices <= names
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_wheel_contains_all_packages_and_no_measurements(wheel: Path) -> None:
    """Benchmark records, which nothing reads at run time, once were 69 of the wheel's 81 MB."""
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(REPOSITORY_ROOT).as_posix() for package in TOP_LEVEL_PACKAGES
               for path in (REPOSITORY_ROOT / package).rglob("*.py") if "training" not in path.parts}
    assert modules <= names
    assert {name.partition("/")[0] for name in names} == {*TOP_LEVEL_PACKAGES}
    assert not [name for name in names if "/results/" in name or "/training/" in name]
    assert {Path(name).suffix for name in names} == {
        ".py", ".pyi", ".md", ".json", ".jinja", ".safetensors", ".c", ".h", ".css", ".html", ".js", ".svg", ".txt",
        *([".so"] if can_compile_kernels() else [])}
    assert wheel.stat().st_size <= MAX_ARCHIVE_BYTES


@pytest.mark.skipif(not can_compile_kernels(), reason="there is no C compiler")
def test_shard_uses_the_kernels_of_the_wheel_without_a_compiler(python_with_wheel: Path, tmp_path: Path) -> None:
    program = "from shard.native.library import load_library_or_reason; print(load_library_or_reason().functions._name)"
    completed = subprocess.run([python_with_wheel, "-P", "-c", program], check=True, capture_output=True, text=True,
                               env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    site = find_site(python_with_wheel.parents[1])
    assert completed.stdout.strip() == str(site / "shard" / "native" / library_file_name())
    assert not (tmp_path / "weft").exists()


def test_source_archive_contains_no_benchmark_records(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-P", "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path],
                   cwd=REPOSITORY_ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("weft-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"pyproject.toml", "router/config.py", "tests/test_dist.py", "launcher/demo/model/config.json"} <= names
    assert not [name for name in names if name.startswith("benchmarks/results/") or "/training/" in name]
    assert archive.stat().st_size <= MAX_ARCHIVE_BYTES


def test_repository_contains_no_benchmark_records() -> None:
    kept = {path.suffix for path in (REPOSITORY_ROOT / "benchmarks" / "results").rglob("*") if path.is_file()}
    assert kept <= {".md", ".txt", ".json", ".csv", ".png"}


def test_benchmarks_run_from_the_wheel_and_write_to_the_working_directory(python_with_wheel: Path,
                                                                          tmp_path: Path) -> None:
    (here := tmp_path / "here").mkdir()
    program = ("from benchmarks.harness.reporting import RESULTS_FOLDER, save_report; save_report('loom', 'weft'); "
               "print(RESULTS_FOLDER)")
    completed = subprocess.run([python_with_wheel, "-P", "-c", program], cwd=here, check=True, capture_output=True,
                               text=True)
    assert completed.stdout == "results\n"
    assert [path.read_text() for path in (here / "results").iterdir()] == ["weft"]
    for command in ("bench", "study"):
        subprocess.run([python_with_wheel.with_name("weft"), command, "--help"], cwd=here, check=True,
                       capture_output=True)


def test_server_runs_from_the_wheel(python_with_wheel: Path, tmp_path: Path) -> None:
    with run_weft_process(tmp_path, command=(python_with_wheel.with_name("weft"),)) as weft:
        assert "weft/demo" in weft.banner[0]
        [shard] = weft.find_child_pids("shard.rpc.server")
        assert str(python_with_wheel) in Path(f"/proc/{shard}/cmdline").read_text()
        assert len(weft.generate(10)) > 10


@pytest.mark.long
def test_image_install_script_adds_commands_of_other_servers(wheel: Path, tmp_path: Path) -> None:
    """The script runs without a network; dependencies come from the current environment."""
    environment, parts = tmp_path / "environment", tmp_path / "parts"
    venv.create(environment, with_pip=False)
    parts.mkdir()
    for part in (wheel, REPOSITORY_ROOT / "constraints.txt"):
        (parts / part.name).symlink_to(part)
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1",
                 "PIP_PYTHON": str(environment / "bin" / "python")}
    subprocess.run([REPOSITORY_ROOT / "deploy/docker/install.sh", parts], env=variables, check=True,
                   capture_output=True)
    (find_site(environment) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    for command, line in (
            (["text-generation-launcher"], "weft: a model must be named: "),
            (["text-generation-server"], "weft: the following arguments are required: download-weights"),
            (["lorax-launcher", "--eager", "--compile"], "weft: --eager and --compile contradict each other"),
            (["lorax-server"], "weft: the following arguments are required: download-weights"),
            (["text-generation-benchmark"], "weft: a model must be named: --tokenizer-name")):
        ended = subprocess.run([environment / "bin" / command[0], *command[1:]], env={}, capture_output=True, text=True,
                               check=False)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(line)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_server_runs_from_a_wheel_with_installed_dependencies(wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from pip's package index, which takes minutes."""
    venv.create(tmp_path / "environment", with_pip=True)
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c",
                    REPOSITORY_ROOT / "constraints.txt", wheel], check=True)
    with run_weft_process(tmp_path, command=(python.with_name("weft"),)) as weft:
        assert len(weft.generate(10)) > 10
