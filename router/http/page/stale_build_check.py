"""Check that the built files of the page belong to its sources: `python -m router.http.page.stale_build_check`.

`make page` writes the digests of all sources and built files to `static/SHA256SUMS`, in the format of sha256sum. That
they agree can be checked without Node.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE_FOLDER = Path(__file__).parent
SUMS_FILE = "static/SHA256SUMS"
TOOLCHAIN_FILES = ("build.mjs", "package.json", "package-lock.json", "tsconfig.json")


def load_recorded_digests(page_folder: Path) -> dict[str, str]:
    """Return the digests by file, as `make page` wrote them."""
    lines = (page_folder / SUMS_FILE).read_text().splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def compute_digests(page_folder: Path) -> dict[str, str]:
    files = [path for folder in ("sources", "static") for path in (page_folder / folder).rglob("*") if path.is_file()]
    files += [page_folder / name for name in TOOLCHAIN_FILES]
    digests = {path.relative_to(page_folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
               for path in files}
    digests.pop(SUMS_FILE, None)
    return digests


def find_stale_files(page_folder: Path) -> Iterator[str]:
    """Yield the files that were changed, added or removed since the page was built."""
    recorded, present = load_recorded_digests(page_folder), compute_digests(page_folder)
    yield from (name for name in sorted(recorded.keys() | present.keys()) if recorded.get(name) != present.get(name))


def main() -> None:
    if stale_files := [*find_stale_files(PAGE_FOLDER)]:
        sys.stderr.write(f"weft: router/http/page changed since its page was built ({', '.join(stale_files)}): "
                         "make page\n")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
