"""Compiling the kernels: when weft is installed (build_hook.py), or when a shard finds none (library.py).

Only the standard library is imported: while weft is installed there is nothing else.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from shutil import which

NATIVE_FOLDER = Path(__file__).parent
SOURCE_NAMES = ("products.c", "bf16_products.c", "amx_bf16_products.c", "int8_products.c", "int4_products.c",
                "amx_int4_products.c", "attention.c", "amx_attention.c", "activations.c", "norms.c", "rotary.c",
                "rounding.c", "packing.c", "quantizing.c", "lora.c", "normalizing.c", "candidates.c")
# Products and sums are fused only where the source says so, which every compiler then does alike.
COMPILE_FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-fvisibility=hidden", "-s")
COMPILE_TIMEOUT_SECONDS = 120


class CompilationFailed(Exception):
    """There is no compiler, or it failed."""


def find_compiler() -> tuple[str, ...] | None:
    """Return the command of a C compiler: CC, or the first of cc, gcc and clang, or that of the package ziglang.

    Whatever it compiles runs on every processor: functions for some of them are marked in the sources.
    """
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if path := which(name):
            return (path, "-march=x86-64", "-mtune=generic")
    if find_spec("ziglang") is None:
        return None
    return (sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17", "-mcpu=baseline")


def is_supported_platform() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def library_file_name() -> str:
    """Return the file's name of the library compiled from the present sources."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(NATIVE_FOLDER.glob("*.[ch]"))]
    key = hashlib.sha256(repr((sources, COMPILE_FLAGS)).encode()).hexdigest()[:16]
    return f"kernels-{platform.machine()}-{key}.so"


def compile_library(folder: Path) -> Path:
    """Compile the library into `folder`. Several processes may do so at once."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilationFailed("there is no C compiler; install gcc or clang, or the package ziglang with pip")
    path = folder / library_file_name()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
            compiled_path = Path(temporary_folder, "kernels.so")
            try:
                run_compiler(compiler, compiled_path)
            except CompilationFailed:  # an assembler that is older than the compiler may not know AVX-VNNI, or AMX
                try:
                    run_compiler((*compiler, "-DHAS_AVX_VNNI=0"), compiled_path)
                except CompilationFailed:
                    run_compiler((*compiler, "-DHAS_AVX_VNNI=0", "-DHAS_AMX=0"), compiled_path)
            compiled_path.replace(path)
    except OSError as error:
        raise CompilationFailed(f"cannot write {path}: {error}") from error
    return path


def run_compiler(compiler: tuple[str, ...], output: Path) -> None:
    try:
        result = subprocess.run(  # noqa: S603 - a compiler on our own files
            [*compiler, *COMPILE_FLAGS, "-o", str(output), *(str(NATIVE_FOLDER / name) for name in SOURCE_NAMES)],
            check=False, capture_output=True, text=True, errors="replace", timeout=COMPILE_TIMEOUT_SECONDS)
    except OSError as error:
        raise CompilationFailed(f"cannot run {compiler[0]}: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CompilationFailed(f"{' '.join(compiler)} took more than {COMPILE_TIMEOUT_SECONDS} seconds") from error
    if result.returncode:
        raise CompilationFailed(f"{' '.join(compiler)} failed: {result.stderr.strip()[-500:]}")
