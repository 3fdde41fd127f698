"""The hook of hatchling that compiles the kernels while weft is installed."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shard.native import build_hook, compiler
from shard.native.build_hook import COMPILER_PACKAGE, OPT_OUT_VARIABLE, KernelBuildHook, load_compiler_module

REPOSITORY_ROOT = Path(__file__).parents[3]
needs_compiler = pytest.mark.skipif(not compiler.is_supported_platform() or compiler.find_compiler() is None,
                                    reason="there is no C compiler")


class FakeApplication:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the hook needs of the repository, with sources that take no time to compile."""
    folder = tmp_path / "shard" / "native"
    shutil.copytree(REPOSITORY_ROOT / "shard" / "native", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in compiler.SOURCE_NAMES:
        (folder / name).write_text(f"static int {Path(name).stem};\n")
    return tmp_path


def use_compiler_module(monkeypatch: pytest.MonkeyPatch, root: Path, **functions: Any) -> ModuleType:
    """Let the hook use its compiler module with some functions replaced."""
    module = load_compiler_module(str(root))
    for name, function in functions.items():
        monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(build_hook, "load_compiler_module", lambda _: module)
    return module


def run_hook(root: Path, target: str = "wheel") -> tuple[list[str], list[str]]:
    """Return the files that the build is to include, and the warnings."""
    application, build_data = FakeApplication(), {"artifacts": list[str]()}
    hook = KernelBuildHook(str(root), {}, None, None, "", target, application)  # type: ignore[arg-type]  # unused
    hook.initialize("standard", build_data)
    return build_data["artifacts"], application.warnings


@needs_compiler
def test_kernels_are_compiled_once_and_outdated_ones_removed(checkout: Path) -> None:
    folder = checkout / "shard" / "native"
    (folder / "kernels-x86_64-0123456789abcdef.so").write_bytes(b"")
    name = load_compiler_module(str(checkout)).library_file_name()
    assert run_hook(checkout) == ([f"/shard/native/{name}"], [])
    [library] = folder.glob("*.so")
    assert library.name == name
    compiled_at = library.stat().st_mtime_ns
    run_hook(checkout)
    assert library.stat().st_mtime_ns == compiled_at


def test_source_archive_contains_no_compiled_kernels(checkout: Path) -> None:
    assert run_hook(checkout, "sdist") == ([], [])
    assert not [*checkout.rglob("*.so")]


def test_installation_goes_on_without_kernels(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler_module(monkeypatch, checkout, find_compiler=lambda: None, is_supported_platform=lambda: True)
    artifacts, [warning] = run_hook(checkout)
    assert not artifacts
    assert warning.startswith("no compiled kernels, shards on CPUs will be slower: there is no C compiler")


@pytest.mark.parametrize(("command", "has_kernels", "packages"), [
    (None, True, [COMPILER_PACKAGE]), (("/bin/cc",), True, []), (None, False, [])])
def test_compiler_is_a_package_only_where_there_is_no_other(
        checkout: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...] | None, has_kernels: bool,
        packages: list[str]) -> None:
    use_compiler_module(monkeypatch, checkout, find_compiler=lambda: command,
                        is_supported_platform=lambda: has_kernels)
    hook = KernelBuildHook(str(checkout), {}, None, None, "", "wheel")  # type: ignore[arg-type]  # unused
    assert hook.dependencies() == packages
    archive_hook = KernelBuildHook(str(checkout), {}, None, None, "", "sdist")  # type: ignore[arg-type]  # unused
    assert archive_hook.dependencies() == []
    monkeypatch.setenv(OPT_OUT_VARIABLE, "1")
    assert hook.dependencies() == []
    assert run_hook(checkout) == ([], [])
