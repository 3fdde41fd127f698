"""Imports that are allowed between packages and of libraries, and modules that load no heavy libraries."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
TOP_LEVEL_PACKAGES = ("router", "shard", "launcher", "benchmarks")
ALLOWED_IMPORTS = {
    "launcher": {"router.config", "shard.checkpoint.safetensors_file", "shard.config", "shard.tls_credentials",
                 "shard.telemetry.logs", "shard.telemetry.span_export_interface"},
    "router": {"shard.tls_credentials", "shard.pb", "shard.telemetry.logs", "shard.telemetry.span_export_interface"},
    # Scheduler, recorder and simulation are measured in the benchmark's own process.
    "benchmarks": {"shard", *(f"router.{name}" for name in (
        "model_info", "recording", "request", "scheduler", "simulation"))},
    "shard": set(),
}
ALLOWED_IMPORTERS = {  # libraries, and the only modules and packages that may import them
    "grpc": {"router/shards", "shard", "benchmarks"},
    "aiohttp": {"router/http", "launcher/client", "launcher/ray_serve/forwarding.py",
                "launcher/ray_serve/deployments.py", "benchmarks/experiments/hostile_tenant.py",
                "benchmarks/experiments/load_balancer_comparison.py", "benchmarks/peers/openvino_server.py"},
    "ray": {"launcher/ray_serve"},
    "uvloop": {"router/__main__.py", "benchmarks"},
    "jinja2": {"router/text/jinja_sandbox.py"},
    "llguidance": {"router/grammars/compiler_process.py", "shard/sampling/grammar.py"},
    "opentelemetry": {"shard/telemetry/otlp.py"},
    "rich": {"benchmarks", "launcher/client"},
    "matplotlib": {"benchmarks"},
    "cyclopts": {"launcher/cli.py", "launcher/command_line", "benchmarks"},
    "torch": {"shard", "benchmarks", "launcher/demo/training"},
}
# Packages, and modules directly in the top-level folder, each of which may import those before it, and itself.
# Packages inside a package belong to it.
IMPORT_ORDER = {
    "router": ["config", "errors", "request", "model_info", "pydantic_errors", "api_keys", "launcher_protocol",
               "processes", "adapters", "scheduler", "text", "grammars",
               "shards", "validation", "recording", "simulation", "telemetry", "monitor", "engine", "http.transport",
               "http.tgi", "http.openai", "http.anthropic", "http.routes", "http.ollama", "http.lorax",
               "http.field_descriptions", "http.docs_examples", "http.docs", "http.page", "http", "__main__"],
    "shard": ["pb", "errors", "pending_result", "json_config", "fault_script", "tls_credentials", "telemetry",
              "parallel", "config", "native", "hardware", "state", "speculation", "simulator", "quantization", "ops",
              "sampling", "attention", "lora", "checkpoint", "adapters", "layers", "models", "runner", "workers",
              "rpc"],
    "launcher": ["environment_variables", "console_output", "client", "demo", "hub", "settings", "adapters",
                 "supervisor", "hosts", "banner", "compat", "settings_docs",
                 "command_line", "doctor", "ray_serve", "cli", "ray_app", "compat_commands", "entry_point"],
    "benchmarks": ["settings_search", "harness", "bench.load", "bench.report", "bench.shards", "bench", "gpu", "peers",
                   "experiments", "study"],
}
HEAVY_LIBRARIES = {"torch", "transformers", "numpy"}


def list_modules(package: str) -> list[Path]:
    return [path.relative_to(REPOSITORY_ROOT) for path in sorted((REPOSITORY_ROOT / package).rglob("*.py"))
            if path.parent.name != "pb"]


@cache
def parse_module(path: Path) -> ast.Module:
    return ast.parse((REPOSITORY_ROOT / path).read_text())


@cache
def get_imported_names(path: Path) -> frozenset[str]:
    """Return the full names that a module imports, such as `router.config.RouterConfig`."""
    return frozenset(iter_imported_names(path))


def iter_imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(parse_module(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_in_any(name: str, packages: set[str], separator: str) -> bool:
    return any(name == package or name.startswith(package + separator) for package in packages)


@pytest.mark.parametrize("package", TOP_LEVEL_PACKAGES)
def test_package_imports_only_allowed_packages(package: str) -> None:
    foreign = {(str(path), name) for path in list_modules(package) for name in get_imported_names(path)
               if name.split(".")[0] in set(TOP_LEVEL_PACKAGES) - {package}}
    assert [pair for pair in sorted(foreign) if not is_in_any(pair[1], ALLOWED_IMPORTS[package], ".")] == []


def iter_own_names(path: Path) -> Iterator[str]:
    """Yield the full names of modules that a module imports from its top-level package, or names in a string.

    A module that is named in a string is imported by `import_module`, or run as a process."""
    top = path.parts[0]
    yield from (name for name in get_imported_names(path) if name.startswith(f"{top}."))
    for node in ast.walk(parse_module(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{top}."):
            module = node.value.partition(":")[0]
            file = REPOSITORY_ROOT / module.replace(".", "/")
            if file.is_dir() or file.with_suffix(".py").is_file():
                yield module


def find_ordered_package(name: str, order: list[str]) -> str:
    """Return the entry of the order that a module, by its name without the top-level package, belongs to."""
    entries = [entry for entry in order if name == entry or name.startswith(f"{entry}.")]
    return max(entries, key=len, default=name)


@pytest.mark.parametrize("top", TOP_LEVEL_PACKAGES)
def test_imports_between_packages_go_one_way(top: str) -> None:
    order = IMPORT_ORDER[top]
    place = {entry: index for index, entry in enumerate(order)}
    upward = []
    for path in list_modules(top):
        importer = find_ordered_package(get_module_name(path).partition(".")[2], order)
        if importer:  # the package's own __init__ imports nothing
            assert importer in place, f"IMPORT_ORDER lacks {path}"
            upward += [f"{path} imports {name}" for name in iter_own_names(path)
                       if place[find_ordered_package(name.partition(".")[2], order)] > place[importer]]
    assert upward == []


@pytest.mark.parametrize("top", TOP_LEVEL_PACKAGES)
def test_order_of_imports_names_nothing_that_is_gone(top: str) -> None:
    folder = REPOSITORY_ROOT / top
    assert [entry for entry in IMPORT_ORDER[top] if not (path := folder / entry.replace(".", "/")).is_dir()
            and not path.with_suffix(".py").is_file()] == []


def test_class_name_is_defined_once_in_a_top_level_package() -> None:
    for top in TOP_LEVEL_PACKAGES:
        names = [node.name for path in list_modules(top)
                 for node in ast.walk(parse_module(path)) if isinstance(node, ast.ClassDef)]
        assert [name for name, count in Counter(names).items() if count > 1] == [], top


@pytest.mark.parametrize("package", ALLOWED_IMPORTERS)
def test_library_is_imported_only_by_allowed_modules(package: str) -> None:
    users = {path.as_posix() for part in TOP_LEVEL_PACKAGES for path in list_modules(part)
             for name in get_imported_names(path) if name.split(".")[0].startswith(package)}
    assert [path for path in sorted(users) if not is_in_any(path, ALLOWED_IMPORTERS[package], "/")] == []


def get_packages_loaded_by(*names: str) -> set[str]:
    """Return the top-level packages that a new Python process has loaded after importing these modules."""
    program = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
               .stdout.split())


def get_module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.slow
def test_router_never_loads_torch() -> None:
    assert not HEAVY_LIBRARIES & get_packages_loaded_by(*map(get_module_name, list_modules("router")))


@pytest.mark.slow
def test_launcher_loads_no_libraries_of_its_children() -> None:
    """The clients of a server and what runs inside Ray, which are imported when they are run, and the code that made
    the demo model are left out. Of the latter two packages the command line imports only options."""
    own = [path for path in list_modules("launcher") if not {"demo", "client", "ray_serve"} & {*path.parts}]
    assert not (HEAVY_LIBRARIES
                | {"grpc", "aiohttp", "google", "tokenizers"}) & get_packages_loaded_by(*map(get_module_name, own))


@pytest.mark.slow
def test_opentelemetry_is_not_loaded_at_import() -> None:
    assert "opentelemetry" not in get_packages_loaded_by("launcher.cli", "router.__main__", "shard.rpc.server")


def test_generated_messages_load_no_torch() -> None:
    assert not HEAVY_LIBRARIES & get_packages_loaded_by("shard.pb.shard_pb2")


def test_command_line_loads_no_http() -> None:
    assert "http" not in get_packages_loaded_by("launcher.cli")
