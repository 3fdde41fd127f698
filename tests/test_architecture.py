"""Documentation pages list all modules, settings and dependencies, and the files, tests and links on them exist."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from router.config import RouterConfig

REPOSITORY_ROOT = Path(__file__).parents[1]
TOP_LEVEL_PACKAGES = ("router", "shard", "launcher", "benchmarks")
DOCS_PAGES = sorted(path.relative_to(REPOSITORY_ROOT).as_posix() for path in REPOSITORY_ROOT.glob("docs/**/*.md"))
CHECKED_PAGES = ["README.md", "CONTRIBUTING.md", "router/README.md", "benchmarks/README.md", "benchmarks/batching.md",
                 *DOCS_PAGES]
# Where the server listens needs no explanation.
UNEXPLAINED_SETTINGS = {"hostname", "port"}


def read_page(page: str) -> str:
    return (REPOSITORY_ROOT / page).read_text()


def find_inline_code(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", read_page(page)))


def iter_modules() -> Iterator[str]:
    for package in TOP_LEVEL_PACKAGES:
        for path in sorted((REPOSITORY_ROOT / package).rglob("*.py")):
            if path.parent.name != "pb" and path.name != "__init__.py":
                yield path.relative_to(REPOSITORY_ROOT).as_posix()


def collect_methods_by_class() -> dict[str, set[str]]:
    """Return the method names of each of our classes, by class name."""
    methods_by_class: dict[str, set[str]] = {}
    for module in iter_modules():
        for node in ast.walk(ast.parse(read_page(module))):
            if isinstance(node, ast.ClassDef):
                names = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
                methods_by_class.setdefault(node.name, set()).update(names)
    return methods_by_class


@cache
def collect_test_names() -> set[str]:
    return {name for path in (REPOSITORY_ROOT / "tests").rglob("*.py")
            for name in re.findall(r"def (test_\w+)\(", path.read_text())}


def iter_packages() -> Iterator[str]:
    """Yield the folders that contain modules; those below a prefix in `nested_prefixes` belong to the package there."""
    nested_prefixes = ("shard/models/", "launcher/adapters/", "launcher/demo/", "router/http/", "benchmarks/bench/")
    for folder in sorted({str(Path(module).parent) for module in iter_modules()}):
        if not folder.startswith(nested_prefixes) and folder not in TOP_LEVEL_PACKAGES:
            yield folder + "/"


def test_every_package_is_listed_in_the_architecture_page() -> None:
    rows = re.findall(rf"^\| `((?:{'|'.join(TOP_LEVEL_PACKAGES)})/\S+/)` \|", read_page("docs/dev/architecture.md"),
                      re.MULTILINE)
    assert sorted({*rows} - {"shard/pb/", "launcher/demo/"}) == sorted(iter_packages())


def test_methods_named_in_the_architecture_page_exist() -> None:
    known = collect_methods_by_class()
    named = [name.split(".") for name in find_inline_code("docs/dev/architecture.md")
             if re.fullmatch(r"[A-Z]\w+\.\w+", name)]
    assert [f"{owner}.{method}" for owner, method in named if method not in known.get(owner, ())] == []


def test_tuning_page_names_every_setting() -> None:
    flags = {"--" + item.name.replace("_", "-") for item in fields(RouterConfig)
             if item.name not in UNEXPLAINED_SETTINGS}
    assert {flag for flag in flags if flag not in read_page("docs/guides/tuning.md")} == set()


@pytest.mark.parametrize("page", CHECKED_PAGES)
def test_tests_and_files_named_on_pages_exist(page: str) -> None:
    files = {name for name in find_inline_code(page) if re.fullmatch(r"[\w./]+/[\w.]+\.(py|proto|md)", name)}
    assert {name for name in files if not (REPOSITORY_ROOT / name).exists()} == set()
    tests = {name for name in find_inline_code(page) if re.fullmatch(r"test_\w+", name)}
    assert tests - collect_test_names() == set()


def test_every_dependency_has_a_documented_reason() -> None:
    project = tomllib.loads(read_page("pyproject.toml"))["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    table = read_page("docs/dev/decisions/dependencies.md")
    reasons = re.findall(r"^\| ([\w-]+) \| .+ \|$", table, re.MULTILINE)
    names = {re.split(r"[<>=\[]", requirement)[0] for requirement in requirements}
    names -= {project["name"]}  # an extra may require another extra of the package itself
    assert sorted(reasons) == sorted(["package", *names])


@pytest.mark.parametrize("page", CHECKED_PAGES)
def test_links_on_pages_lead_to_existing_files(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", read_page(page))
    files = {link.partition("#")[0] for link in links if "://" not in link}
    assert {file for file in files if file and not (REPOSITORY_ROOT / page).parent.joinpath(file).exists()} == set()


def test_boxes_of_the_drawing_are_modules():
    page = read_page("docs/dev/architecture.md")
    drawing = page[page.index("## The path of one request"):].split("```")[1]
    modules = {match.removesuffix("/")
               for match in re.findall(r"\b(?:http|validation|text|engine|scheduler|shards)/[a-z_/]+", drawing)}
    assert len(modules) > 12
    missing = sorted(module for module in modules if not (REPOSITORY_ROOT / "router" / f"{module}.py").exists())
    assert not missing
