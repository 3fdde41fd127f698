"""Copy the pages of the site, and the files that they show or link, to a folder; report links that lead nowhere.

`python3 docs/site/collect.py FOLDER`, in the root of the checkout. Needs nothing but Python.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "router/README.md", "benchmarks/README.md",
              "benchmarks/batching.md")
CODE_PATTERN = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK_PATTERN = re.compile(r"\]\(([^)\s]+)\)")
HEADING_PATTERN = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def list_pages(root: Path) -> list[Path]:
    return [*(root / page for page in ROOT_PAGES), *sorted((root / "docs").rglob("*.md"))]


def iterate_links(page: Path) -> Iterator[str]:
    """Yield the targets of links and pictures to files."""
    for target in LINK_PATTERN.findall(CODE_PATTERN.sub("", page.read_text())):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    anchors = set[str]()
    for heading in HEADING_PATTERN.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        text = re.sub(r"[`*]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        anchors.add(next(name for name in (anchor, *(f"{anchor}-{i}" for i in range(1, 100))) if name not in anchors))
    return anchors


def find_broken_links(root: Path) -> list[str]:
    broken_links = list[str]()
    for page in list_pages(root):
        for link in iterate_links(page):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                broken_links.append(f"{page.relative_to(root)}: {link}: there is no such file")
            elif anchor and target.suffix == ".md" and anchor not in list_anchors(target):
                broken_links.append(f"{page.relative_to(root)}: {link}: there is no such heading")
    return broken_links


def copy_site(root: Path, folder: Path) -> None:
    """Copy every page, every file that a page links, and what linked pages link."""
    waiting, seen = list_pages(root), set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        if path.suffix == ".md":
            waiting += [(path.parent / link.partition("#")[0]).resolve() for link in iterate_links(path)]


def main() -> None:
    root = Path.cwd()
    if broken_links := find_broken_links(root):
        sys.exit("\n".join(broken_links))
    copy_site(root, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
