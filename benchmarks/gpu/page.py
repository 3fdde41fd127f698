"""Results as a section of a Markdown page: the command, date, hardware and versions, and a table."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.measurements import Row
from benchmarks.harness.results import file_name, made


def tell(title: str, rows: Sequence[Row], device: str, folder: str, rates: str = "") -> None:
    """Print a section and a line of JSON; with a folder, append the section to its page of this day and card."""
    facts = made(places=("--folder", "--save")) | {"rates": rates}
    if device == "cuda":
        facts["hardware"] = torch.cuda.get_device_name()
    text = section(title, facts, rows)
    print(f"{text}\n{json.dumps({'title': title, **facts, 'rows': rows})}", flush=True)
    if folder:
        page = Path(folder) / f"{file_name(facts['date'], facts['hardware'])}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def section(title: str, facts: Row, rows: Sequence[Row]) -> str:
    on = [facts["date"], facts["hardware"], *(f"{name} {number}" for name, number in facts["versions"].items())]
    columns = [name for name in rows[0] if any(row[name] != "" for row in rows)]
    table = [columns, ["---:"] * len(columns), *([str(row[name]) for name in columns] for row in rows)]
    return "\n".join([f"## {title}", "", f"`{facts['command']}`", "",
                      ", ".join(on + [facts["rates"]] * bool(facts["rates"])), "",
                      *(f"| {' | '.join(cells)} |" for cells in table), ""])
