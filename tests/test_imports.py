"""Imports that are allowed between packages and of libraries, and modules that load no heavy libraries."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("router", "shard", "launcher", "benchmarks")
ARROWS = {
    "launcher": {"router.config", "shard.config", "shard.telemetry.logs", "shard.telemetry.traces"},
    "router": {"shard.pb", "shard.telemetry.logs", "shard.telemetry.traces"},
    # Scheduler, recorder and simulation are measured in the benchmark's own process.
    "benchmarks": {"shard", *(f"router.{name}" for name in (
        "block_hash", "recording", "request", "scheduler", "simulation"))},
    "shard": set(),
}
ONLY = {  # libraries, and the only modules and packages that may import them
    "grpc": {"router/shards", "shard", "benchmarks"},
    "aiohttp": {"router/http", "router/client", "benchmarks"},
    "uvloop": {"router/__main__.py", "benchmarks"},
    "jinja2": {"router/text/jinja_sandbox.py"},
    "llguidance": {"router/grammars/compiler_process.py", "shard/sampling/grammar.py"},
    "opentelemetry": {"shard/telemetry/otlp.py"},
    "rich": {"benchmarks"},
    "matplotlib": {"benchmarks"},
    "cyclopts": {"launcher/cli.py", "launcher/commands.py", "benchmarks"},
    "torch": {"shard", "benchmarks", "launcher/demo/training"},
}
HEAVY = {"torch", "transformers", "numpy"}


def modules(package: str) -> list[Path]:
    return [path.relative_to(ROOT) for path in sorted((ROOT / package).rglob("*.py")) if path.parent.name != "pb"]


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names that a module imports, such as `router.config.RouterConfig`."""
    return frozenset(imported_names(path))


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in(name: str, packages: set[str], separator: str) -> bool:
    return any(name == package or name.startswith(package + separator) for package in packages)


@pytest.mark.parametrize("package", OURS)
def test_a_package_imports_only_along_the_arrows(package: str) -> None:
    foreign = {(str(path), name) for path in modules(package) for name in imports(path)
               if name.split(".")[0] in set(OURS) - {package}}
    assert [pair for pair in sorted(foreign) if not is_in(pair[1], ARROWS[package], ".")] == []


@pytest.mark.parametrize("package", ONLY)
def test_a_library_is_imported_only_where_it_belongs(package: str) -> None:
    users = {path.as_posix() for part in OURS for path in modules(part) for name in imports(path)
             if name.split(".")[0].startswith(package)}
    assert [path for path in sorted(users) if not is_in(path, ONLY[package], "/")] == []


def loaded_by(*names: str) -> set[str]:
    """Return the top-level packages that a new Python process has loaded after importing these modules."""
    program = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
               .stdout.split())


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.slow
def test_the_router_never_loads_torch() -> None:
    assert not HEAVY & loaded_by(*map(module_name, modules("router")))


@pytest.mark.slow
def test_the_launcher_loads_nothing_of_what_its_children_need() -> None:
    """The code that made the demo model is left out."""
    own = [path for path in modules("launcher") if "demo" not in path.parts]
    assert not (HEAVY | {"grpc", "aiohttp", "google", "tokenizers"}) & loaded_by(*map(module_name, own))


@pytest.mark.slow
def test_what_sends_traces_is_loaded_only_by_who_sends_them() -> None:
    assert "opentelemetry" not in loaded_by("launcher.cli", "router.__main__", "shard.rpc.server")


def test_generated_messages_cost_no_torch() -> None:
    assert not HEAVY & loaded_by("shard.pb.shard_pb2")


def test_the_command_line_loads_no_http() -> None:
    assert "http" not in loaded_by("launcher.cli")
