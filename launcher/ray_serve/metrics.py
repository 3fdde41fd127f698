"""The metrics of several replicas as one page for Prometheus."""

from collections.abc import Mapping

REPLICA_LABEL = "replica"


def merge_metrics(pages: Mapping[str, str]) -> str:
    """Return the samples of all pages, by replica, each with the replica as its first label.

    A family stays together, as the format demands; help and type are those of the first page that has it."""
    comments, samples = dict[str, list[str]](), dict[str, list[str]]()
    for replica, page in pages.items():
        family = ""
        is_new = set[str]()
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                if family not in comments:
                    comments[family], samples[family] = [], []
                    is_new.add(family)
                if family in is_new:
                    comments[family].append(line)
            elif line and not line.startswith("#"):
                samples[family].append(add_label(line, replica))
    return "".join(f"{line}\n" for family in comments for line in (*comments[family], *samples[family]))


def add_label(sample: str, replica: str) -> str:
    """Return a line with the label. A name has no blank or brace, so the first one ends it."""
    label = f'{REPLICA_LABEL}="{replica}"'
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label}{',' if not rest.startswith('}') else ''}{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
