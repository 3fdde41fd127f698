"""Results as a section of a Markdown page: the command, date, hardware and versions, and a table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.reporting import collect_run_metadata, make_file_name

TableRow = dict[str, Any]  # by name of a column


def print_and_save_section(title: str, rows: Sequence[TableRow], device_type: str, folder: str,
                           measured_rates: str = "") -> None:
    """Print a section and a line of JSON; with a folder, append the section to its page of this day and card."""
    metadata = collect_run_metadata(path_options=("--folder", "--save")) | {"rates": measured_rates}
    if device_type == "cuda":
        metadata["hardware"] = torch.cuda.get_device_name()
    text = format_section(title, metadata, rows)
    print(f"{text}\n{json.dumps({'title': title, **metadata, 'rows': rows})}", flush=True)
    if folder:
        page = Path(folder) / f"{make_file_name(metadata['date'], metadata['hardware'])}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")


def format_section(title: str, metadata: TableRow, rows: Sequence[TableRow]) -> str:
    environment = [metadata["date"], metadata["hardware"],
                   *(f"{name} {number}" for name, number in metadata["versions"].items())]
    columns = [name for name in rows[0] if any(row[name] != "" for row in rows)]
    table = [columns, ["---:"] * len(columns),
             *([str(row[name]).replace("|", r"\|") for name in columns] for row in rows)]
    return "\n".join([f"## {title}", "", f"`{metadata['command']}`", "",
                      ", ".join(environment + [metadata["rates"]] * bool(metadata["rates"])), "",
                      *(f"| {' | '.join(cells)} |" for cells in table), ""])
