"""What was found, as a section of a page: the command, what it ran on, a table. Knows no figure by its meaning."""

import json
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.card.rows import Row
from benchmarks.saved import file_name, hardware, today


def tell(title: str, rows: Sequence[Row], device: str, folder: str, rates: str = "") -> None:
    """Prints it, JSON in the last line; with a folder it is added to the page of this day and card there."""
    facts = {"date": today(), "on": torch.cuda.get_device_name() if device == "cuda" else hardware(),
             "torch": torch.__version__, "weft": version("weft"), "rates": rates,
             "command": shlex.join(["python", "-P", "-m", "benchmarks.card", *sys.argv[1:]])}
    text = section(title, facts, rows)
    print(f"{text}\n{json.dumps({'title': title, **facts, 'rows': rows})}", flush=True)
    if folder:
        page = Path(folder) / f"{file_name(facts['date'], facts['on'])}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def section(title: str, facts: Row, rows: Sequence[Row]) -> str:
    on = [facts["date"], facts["on"], *(f"{name} {facts[name]}" for name in ("torch", "weft"))]
    columns = [name for name in rows[0] if any(row[name] != "" for row in rows)]
    table = [columns, ["---:"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    return "\n".join([f"## {title}", "", f"`{facts['command']}`", "",
                      ", ".join(on + [facts["rates"]] * bool(facts["rates"])), "",
                      *(f"| {' | '.join(cells)} |" for cells in table), ""])
