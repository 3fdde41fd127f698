"""Compiles the kernels while weft is installed or its wheel is built, so that a machine that serves needs no compiler.

hatchling loads this file by its path. Where nothing can be compiled, weft is installed all the same, and shards use
torch.
"""

import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OPT_OUT_VARIABLE = "WEFT_BUILD_WITHOUT_KERNELS"  # for package indexes without the next
COMPILER_PACKAGE = "ziglang>=0.17,<0.18"  # a C compiler as a package; only for this build, and only without another one


def load_compiler_module(root: str) -> ModuleType:
    """Return shard/native/compiler.py: the package `shard` itself cannot be imported while it is built."""
    spec = importlib.util.spec_from_file_location("weft_compiler", Path(root, "shard", "native", "compiler.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KernelBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        compiler = load_compiler_module(self.root)
        needs_package = self.is_wanted(compiler) and compiler.find_compiler() is None
        return [COMPILER_PACKAGE] if needs_package else []

    def is_wanted(self, compiler: ModuleType) -> bool:
        return (self.target_name == "wheel" and compiler.is_supported_platform()
                and not os.environ.get(OPT_OUT_VARIABLE))

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        compiler = load_compiler_module(self.root)
        if not self.is_wanted(compiler):
            return
        folder = Path(self.root, "shard", "native")
        path = folder / compiler.library_file_name()
        for outdated_path in set(folder.glob("kernels-*.so")) - {path}:
            with suppress(OSError):  # nothing loads it
                outdated_path.unlink()
        if not path.exists():
            try:
                compiler.compile_library(folder)
            except compiler.CompilationFailed as error:
                self.app.display_warning(f"no compiled kernels, shards on CPUs will be slower: {error}")
                return
        build_data["artifacts"].append(f"/shard/native/{path.name}")
