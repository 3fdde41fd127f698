"""Tests of reading small WordNet database files in the format of wndb(5)."""

from pathlib import Path

import pytest

from launcher.demo.training.corpus.sources.wordnet import WordMeaning, parse_meaning, read_first_meanings

LICENCE_LINE = "  1 This software and database is being provided to you, the LICENSEE.\n"
ZEBRA_ENTRY = ("05 n 01 zebra 0 002 @ 02374149 n 0000 #m 02373843 n 0000 | any of several striped African equines; "
               "\"the zebra is a quiet animal\"")
BUS_ENTRY = "06 n 02 autobus 0 bus 0 001 @ 02924116 n 0000 | a vehicle carrying many passengers"
PARIS_ENTRY = "15 n 01 Paris 0 001 @i 08691669 n 0000 | the capital of France"
SLUR_ENTRY = "10 n 01 ethnic_slur 0 000 | a slur"
CAD_ENTRY = "18 n 01 cad 0 001 ;u {smear} n 0000 | someone bad"
GO_ENTRY = "38 v 02 travel 0 go 0 001 @ 00000001 v 0000 01 + 02 00 | change location; move"
GLAD_ENTRY = "00 s 02 glad(p) 0 happy 1 000 | showing joy"


def write_database(folder: Path) -> Path:
    """Write each entry into the file of its part of speech; an entry begins with its own byte offset in the file."""
    noun = write_entries(folder / "data.noun", {"ethnic_slur": SLUR_ENTRY, "zebra": ZEBRA_ENTRY, "bus": BUS_ENTRY,
                                                "paris": PARIS_ENTRY, "cad": CAD_ENTRY})
    write_index(folder / "index.noun", "n", noun)
    write_index(folder / "index.verb", "v", write_entries(folder / "data.verb", {"go": GO_ENTRY}))
    write_index(folder / "index.adj", "a", write_entries(folder / "data.adj", {"happy": GLAD_ENTRY}))
    (folder / "cntlist.rev").write_text(
        "bus%1:06:00:: 1 12\nbus%1:06:01:: 2 30\ngo%2:38:00:: 1 300\nhappy%5:00:00:glad:00 1 7\n")
    return folder


def write_entries(path: Path, entries: dict[str, str]) -> dict[str, int]:
    offset_by_word: dict[str, int] = {}
    text = LICENCE_LINE
    for word, entry in entries.items():
        offset_by_word[word] = len(text)
        slur_offset = f"{offset_by_word.get('ethnic_slur', 0):08}"
        text += f"{len(text):08} {entry.replace('{smear}', slur_offset)}  \n"
    path.write_text(text)
    return offset_by_word


def write_index(path: Path, part_of_speech: str, offset_by_word: dict[str, int]) -> None:
    lines = [f"{word} {part_of_speech} 1 1 @ 1 0 {offset:08}  \n" for word, offset in sorted(offset_by_word.items())]
    path.write_text("".join([LICENCE_LINE, *lines]))


def read_meanings(folder: Path) -> dict[str, WordMeaning]:
    return {meaning.word: meaning for meaning in read_first_meanings(write_database(folder))}


def test_word_has_its_first_meaning(tmp_path: Path) -> None:
    zebra = read_meanings(tmp_path)["zebra"]
    assert (zebra.part_of_speech, zebra.subject_number) == ("n", 5)
    assert zebra.gloss_text.startswith("any of several striped African equines; ")


def test_word_counts_are_read(tmp_path: Path) -> None:
    assert {word: meaning.num_occurrences for word, meaning in read_meanings(tmp_path).items()} == {
        "zebra": 0, "bus": 12, "Paris": 0, "go": 300, "happy": 7}


def test_all_three_parts_of_speech_are_read(tmp_path: Path) -> None:
    assert [read_meanings(tmp_path)[word].part_of_speech for word in ("bus", "go", "happy")] == ["n", "v", "a"]


def test_proper_names_keep_their_capitals(tmp_path: Path) -> None:
    assert read_meanings(tmp_path)["Paris"].find_pointer_targets("@i") == {8691669}


@pytest.mark.parametrize("word", ["cad", "ethnic_slur"])
def test_slurs_and_compounds_are_left_out(tmp_path: Path, word: str) -> None:
    assert word not in read_meanings(tmp_path)


def test_hexadecimal_word_counts_are_read() -> None:
    words = " ".join(f"word{number} 0" for number in range(11))
    assert parse_meaning(f"00000001 07 n 0b {words} 000 | a text", "word9", "n",
                         3) == WordMeaning("word9", "n", 7, (), "a text", 3)


def test_adjective_markers_are_removed() -> None:
    assert parse_meaning(f"00000001 {GLAD_ENTRY}", "glad", "a", 0).word == "glad"
