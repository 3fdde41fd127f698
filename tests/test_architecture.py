"""Documentation pages list all modules, settings and dependencies, and the files, tests and links on them exist."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from router.config import RouterConfig

ROOT = Path(__file__).parents[1]
PACKAGES = ("router", "shard", "launcher", "benchmarks")
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "router/README.md", "benchmarks/README.md", *DOCS]
# Where the server listens needs no explanation.
NOT_EXPLAINED = {"hostname", "port"}


def text(page: str) -> str:
    return (ROOT / page).read_text()


def in_code(page: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text(page)))


def modules() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.parent.name != "pb" and path.name != "__init__.py":
                yield path.relative_to(ROOT).as_posix()


def methods() -> dict[str, set[str]]:
    """Return the method names of each of our classes, by class name."""
    found: dict[str, set[str]] = {}
    for module in modules():
        for node in ast.walk(ast.parse(text(module))):
            if isinstance(node, ast.ClassDef):
                names = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
                found.setdefault(node.name, set()).update(names)
    return found


def packages() -> Iterator[str]:
    """Folders with modules of their own; those inside a package of models, sources or training belong to it."""
    inside = ("shard/models/", "launcher/adapters/", "launcher/demo/", "router/http/", "benchmarks/bench/")
    for folder in sorted({str(Path(module).parent) for module in modules()}):
        if not folder.startswith(inside) and folder not in PACKAGES:
            yield folder + "/"


def test_every_package_has_its_line() -> None:
    rows = re.findall(rf"^\| `((?:{'|'.join(PACKAGES)})/\S+/)` \|", text("docs/architecture.md"), re.MULTILINE)
    assert sorted({*rows} - {"shard/pb/", "launcher/demo/"}) == sorted(packages())


def test_the_walk_names_methods_that_exist() -> None:
    known = methods()
    named = [name.split(".") for name in in_code("docs/architecture.md") if re.fullmatch(r"[A-Z]\w+\.\w+", name)]
    assert [f"{owner}.{method}" for owner, method in named if method not in known.get(owner, ())] == []


def test_the_readers_guide_explains_every_setting() -> None:
    flags = {"--" + item.name.replace("_", "-") for item in fields(RouterConfig) if item.name not in NOT_EXPLAINED}
    assert {flag for flag in flags if flag not in text("router/README.md")} == set()


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_tests_and_files_that_exist(page: str) -> None:
    files = {name for name in in_code(page) if re.fullmatch(r"[\w./]+/[\w.]+\.(py|proto|md)", name)}
    assert {name for name in files if not (ROOT / name).exists()} == set()
    tests = {name for name in in_code(page) if re.fullmatch(r"test_\w+", name)}
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert {name for name in tests if f"def {name}(" not in sources} == set()


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    table = text("docs/decisions.md").partition("## Dependencies")[2].partition("\n## ")[0]
    reasons = re.findall(r"^\| ([\w-]+) \| .+ \|$", table, re.MULTILINE)
    names = {re.split(r"[<>=\[]", name)[0] for name in wanted} - {project["name"]}  # one extra has all of another
    assert sorted(reasons) == sorted(["package", *names])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", text(page))
    files = {link.partition("#")[0] for link in links if "://" not in link}
    assert {file for file in files if file and not (ROOT / page).parent.joinpath(file).exists()} == set()
