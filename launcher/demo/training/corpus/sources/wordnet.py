"""Reader of WordNet's database files (wndb(5)): the first meaning of each word, and how often it occurs in texts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adj"}
PART_OF_SPEECH_NUMBERS = {"n": "1", "v": "2", "a": "3"}  # in sense keys
# usages that a meaning may point to
OFFENSIVE_USAGES = ("ethnic_slur", "disparagement", "obscenity", "vulgarism", "slang")


@dataclass(frozen=True)
class WordMeaning:
    """First meaning of a word in WordNet, and how often it occurs in texts."""

    word: str  # as the lexicographers wrote it: names have capital letters
    part_of_speech: str  # n, v or a
    subject_number: int  # number of the lexicographers' file
    pointers: tuple[tuple[str, int], ...]  # symbol and target offset
    gloss_text: str  # definition and examples
    num_occurrences: int  # occurrences in texts

    def find_pointer_targets(self, symbol: str) -> set[int]:
        return {offset for name, offset in self.pointers if name == symbol}


def read_first_meanings(folder: Path) -> Iterator[WordMeaning]:
    """Yield the single-word entries of each part of speech in alphabetical order, without offensive usages."""
    counts, offensive_offsets = read_first_meaning_counts(folder), read_offensive_usage_offsets(folder)
    for part, name in PARTS_OF_SPEECH.items():
        with (folder / f"data.{name}").open("rb") as data:
            for lemma, offsets in read_word_index(folder, part):
                data.seek(offsets[0])
                line = data.readline().decode("ascii", "replace")
                meaning = parse_meaning(line, lemma, part, counts.get((lemma, part), 0))
                if not meaning.find_pointer_targets(";u") & offensive_offsets:
                    yield meaning


def read_word_index(folder: Path, part_of_speech: str) -> Iterator[tuple[str, list[int]]]:
    """Yield words with the offsets of their meanings, the most frequent one first."""
    with (folder / f"index.{PARTS_OF_SPEECH[part_of_speech]}").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            fields = line.split()
            if line[0] != " " and "_" not in fields[0]:
                yield fields[0], [int(offset) for offset in fields[-int(fields[2]):]]


def read_offensive_usage_offsets(folder: Path) -> set[int]:
    with (folder / "index.noun").open(encoding="ascii", errors="replace") as lines:
        entries = [line.split() for line in lines if line.startswith(OFFENSIVE_USAGES)]
    return {int(offset) for fields in entries if fields[0] in OFFENSIVE_USAGES for offset in fields[-int(fields[2]):]}


def read_first_meaning_counts(folder: Path) -> Mapping[tuple[str, str], int]:
    """Return how often the first meaning of each word occurs in texts."""
    counts: dict[tuple[str, str], int] = {}
    parts = {number: part for part, number in PART_OF_SPEECH_NUMBERS.items()} | {"5": "a"}
    for line in (folder / "cntlist.rev").read_text("ascii", "replace").splitlines():
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        if sense == "1" and rest[0] in parts:
            counts[lemma, parts[rest[0]]] = int(count)
    return counts


def parse_meaning(line: str, lemma: str, part_of_speech: str, num_occurrences: int) -> WordMeaning:
    head, _, text = line.partition(" | ")
    fields = head.split()
    num_words = int(fields[3], 16)
    words = [word.partition("(")[0] for word in fields[4:4 + 2 * num_words:2]]
    pointer_fields = fields[4 + 2 * num_words:]
    pointers = tuple((pointer_fields[at], int(pointer_fields[at + 1]))
                     for at in range(1, 1 + 4 * int(pointer_fields[0]), 4))
    spelled_word = next((word for word in words if word.lower() == lemma), lemma)
    return WordMeaning(spelled_word, part_of_speech, int(fields[1]), pointers, text.strip(), num_occurrences)
