"""Reader of WordNet's database files (wndb(5)): the first meaning of each word, and how often it occurs in texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PARTS = {"n": "noun", "v": "verb", "a": "adj"}
NUMBERS = {"n": "1", "v": "2", "a": "3"}  # in sense keys
MARKED = ("ethnic_slur", "disparagement", "obscenity", "vulgarism", "slang")  # usages that a meaning may point to


@dataclass(frozen=True)
class Meaning:
    word: str  # as the lexicographers wrote it: names have capital letters
    part: str  # n, v or a
    subject: int  # number of the lexicographers' file
    pointers: tuple[tuple[str, int], ...]  # symbol and target offset
    text: str  # definition and examples
    count: int  # occurrences in texts

    def points(self, symbol: str) -> set[int]:
        return {place for name, place in self.pointers if name == symbol}


def meanings(folder: Path) -> Iterator[Meaning]:
    """Yield the single-word entries of each part of speech in alphabetical order, without offensive usages."""
    counts, marked = first_counts(folder), marked_places(folder)
    for part, name in PARTS.items():
        with (folder / f"data.{name}").open("rb") as data:
            for lemma, places in index(folder, part):
                data.seek(places[0])
                line = data.readline().decode("ascii", "replace")
                meaning = parse(line, lemma, part, counts.get((lemma, part), 0))
                if not meaning.points(";u") & marked:
                    yield meaning


def index(folder: Path, part: str) -> Iterator[tuple[str, list[int]]]:
    """Yield words with the offsets of their meanings, the most frequent one first."""
    with (folder / f"index.{PARTS[part]}").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if line[0] != " " and "_" not in fields[0]:
                yield fields[0], [int(place) for place in fields[-int(fields[2]):]]


def marked_places(folder: Path) -> set[int]:
    with (folder / "index.noun").open(encoding="ascii", errors="replace") as lines:
        found = [line.split() for line in lines if line.startswith(MARKED)]
    return {int(place) for fields in found if fields[0] in MARKED for place in fields[-int(fields[2]):]}


def first_counts(folder: Path) -> Mapping[tuple[str, str], int]:
    """Return how often the first meaning of each word occurs in texts."""
    counts: dict[tuple[str, str], int] = {}
    parts = {number: part for part, number in NUMBERS.items()} | {"5": "a"}
    for line in (folder / "cntlist.rev").read_text("ascii", "replace").splitlines():
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        if sense == "1" and rest[0] in parts:
            counts[lemma, parts[rest[0]]] = int(count)
    return counts


def parse(line: str, lemma: str, part: str, count: int) -> Meaning:
    head, _, text = line.partition(" | ")
    fields = head.split()
    num_words = int(fields[3], 16)
    words = [word.partition("(")[0] for word in fields[4:4 + 2 * num_words:2]]
    rest = fields[4 + 2 * num_words:]
    pointers = tuple((rest[at], int(rest[at + 1])) for at in range(1, 1 + 4 * int(rest[0]), 4))
    written = next((word for word in words if word.lower() == lemma), lemma)
    return Meaning(written, part, int(fields[1]), pointers, text.strip(), count)
