"""Generator of docs/reference/settings.md and docs/reference/migration-flags.md.

`python -P -m launcher.settings_docs` writes both; `--check` only compares.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from launcher.compat.flag_descriptions import format_flag_table_rows
from launcher.compat.migrate import TABLES_BY_PROGRAM
from launcher.settings import SETTING_GROUPS, Setting

CONFIGURATION_PAGE, MIGRATION_FLAGS_PAGE = (Path("docs/reference/settings.md"),
                                            Path("docs/reference/migration-flags.md"))
CONFIGURATION_PAGE_HEADER = """\
<!-- Written by `make docs` from the fields of the config dataclasses; change those. -->
# Settings

Every setting of `weft serve` is a flag and an environment variable; a flag wins. Where text-generation-inference has a
flag of the same name and meaning, its variable works as well; when both are set, the one beginning with `WEFT_` counts.
`weft serve --config weft.yaml` reads settings from a YAML file, such as `max-batch-size: 64`, by the names of their
flags; a flag or a variable wins over the file.
A switch (true or false) is turned off with `--no-` before its name, a variable takes `true` or `false`. The model may
stand without its flag: `weft serve org/name`. The Hub's cache is where all its clients keep it: in `HF_HUB_CACHE`, or
else below `HF_HOME`.

Two names are left alone on purpose. `HOSTNAME` is set by shells and containers to the name of the machine. `WEFT_PORT`
is set to a URL by Kubernetes beside a service called `weft`; the port's variable is `PORT`.
"""
MIGRATION_FLAGS_PAGE_HEADER = """\
<!-- Written by `make docs` from the flag tables in launcher/compat; change those. -->
# Flags of other launchers

This page lists every flag and variable of `text-generation-launcher` (text-generation-inference 3.3) and of
`lorax-launcher` (LoRAX 0.12), with its effect in weft.

A flag takes precedence over its variable, and a variable that begins with `WEFT_` over one that does not. A switch may
also be given as `true` or `false`. In the last column:

- "the same": weft has a setting or variable of the same name and meaning;
- "no effect": weft ignores the flag, and logs the reason at start;
- "not needed": weft ignores the flag without a message, and `weft migrate` shows the reason;
- "refused": the server does not start, and the message has the reason.

Guides: [move from text-generation-inference](../guides/from-tgi.md), [move from LoRAX](../guides/from-lorax.md).
"""
TABLE_COLUMNS = ("Flag", "Variable", "Default", "Bounds", "Meaning")


def format_code(text: str) -> str:
    return f"`{text}`" if text else ""


def format_default(setting: Setting) -> str:
    value = setting.field.default
    return "" if value in {None, "", ()} else format_code(str(value).lower() if isinstance(value, bool) else f"{value}")


def format_bounds(setting: Setting) -> str:
    rules = setting.field.metadata
    if rules["choices"]:
        return ", ".join(map(format_code, rules["choices"]))
    parts = (f"{word} {rules[key]}" for word, key in (("from", "low"), ("to", "high")) if rules[key] is not None)
    return " ".join(parts)


def format_table_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def format_settings_table(settings: tuple[Setting, ...]) -> Iterator[str]:
    yield format_table_row(*TABLE_COLUMNS)
    yield format_table_row(*("---" for _ in TABLE_COLUMNS))
    for setting in settings:
        names = ", ".join(map(format_code, setting.flags)), ", ".join(map(format_code, setting.environment_variables))
        yield format_table_row(*names, format_default(setting), format_bounds(setting), setting.field.metadata["help"])


def make_configuration_page() -> str:
    parts = [f"## {title}\n\n" + "\n".join(format_settings_table(settings)) + "\n"
             for title, settings in SETTING_GROUPS.items()]
    return "\n".join([CONFIGURATION_PAGE_HEADER, *parts])


def make_migration_flags_page() -> str:
    parts = [f"## {program}\n\n" + "\n".join(format_flag_table_rows(table)) + "\n"
             for program, table in TABLES_BY_PROGRAM.items()]
    return "\n".join([MIGRATION_FLAGS_PAGE_HEADER, *parts])


def main() -> None:
    for path, text in ((CONFIGURATION_PAGE, make_configuration_page()),
                       (MIGRATION_FLAGS_PAGE, make_migration_flags_page())):
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is stale: make docs")


if __name__ == "__main__":
    main()
