"""Generator of docs/configuration.md and of the flag tables in docs/migrating.md.

`python -P -m launcher.settings_docs` writes both; `--check` only compares.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.compat.docs_table import rows
from launcher.compat.flag_table import Table
from launcher.compat.lorax import LORAX
from launcher.compat.tgi import TGI
from launcher.settings import GROUPS, Setting

PAGE, MIGRATING = Path("docs/configuration.md"), Path("docs/migrating.md")
FOREIGN: Mapping[str, Table] = {"launcher/compat/tgi.py": TGI, "launcher/compat/lorax.py": LORAX}
HEAD = """\
<!-- Written by `make docs` from the fields of the config dataclasses; change those. -->
# Settings

Every setting of `weft serve` is a flag and an environment variable; a flag wins. Where text-generation-inference has a
flag of the same name and meaning, its variable works as well; when both are set, the one beginning with `WEFT_` counts.
A switch (true or false) is turned off with `--no-` before its name, a variable takes `true` or `false`. The model may
stand without its flag: `weft serve org/name`. Where the Hub's cache is, the variables tell that all its clients follow:
`HF_HUB_CACHE`, or else `HF_HOME`.

Two names are left alone on purpose. `HOSTNAME` is set by shells and containers to the name of the machine. `WEFT_PORT`
is set to a URL by Kubernetes beside a service called `weft`; the port's variable is `PORT`.
"""
COLUMNS = ("Flag", "Variable", "Default", "Bounds", "Meaning")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def default(setting: Setting) -> str:
    value = setting.field.default
    return "" if value in {None, "", ()} else code(str(value).lower() if isinstance(value, bool) else f"{value}")


def bounds(setting: Setting) -> str:
    rules = setting.field.metadata
    if rules["choices"]:
        return ", ".join(map(code, rules["choices"]))
    parts = (f"{word} {rules[key]}" for word, key in (("from", "low"), ("to", "high")) if rules[key] is not None)
    return " ".join(parts)


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(settings: tuple[Setting, ...]) -> Iterator[str]:
    yield row(*COLUMNS)
    yield row(*("---" for _ in COLUMNS))
    for setting in settings:
        names = ", ".join(map(code, setting.flags)), ", ".join(map(code, setting.variables))
        yield row(*names, default(setting), bounds(setting), setting.field.metadata["help"])


def page() -> str:
    parts = [f"## {title}\n\n" + "\n".join(table(settings)) + "\n" for title, settings in GROUPS.items()]
    return "\n".join([HEAD, *parts])


def migrating() -> str:
    """Return the page with its tables replaced and all other text unchanged."""
    text = MIGRATING.read_text()
    for file, table in FOREIGN.items():
        before, mark, after = text.partition(f"<!-- Written by `make docs` from {file}; change that. -->\n")
        text = before + mark + "\n".join(rows(table)) + "\n" + re.sub(r"\A(\|.*\n)*", "", after)
    return text


def main() -> None:
    for path, text in ((PAGE, page()), (MIGRATING, migrating())):
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is stale: make docs")


if __name__ == "__main__":
    main()
