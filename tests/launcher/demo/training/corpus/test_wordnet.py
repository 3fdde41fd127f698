"""Tests of reading small WordNet database files in the format of wndb(5)."""

from pathlib import Path

import pytest

from launcher.demo.training.corpus.wordnet import Meaning, meanings, parse

LICENCE = "  1 This software and database is being provided to you, the LICENSEE.\n"
ZEBRA = ("05 n 01 zebra 0 002 @ 02374149 n 0000 #m 02373843 n 0000 | any of several striped African equines; "
         "\"the zebra is a quiet animal\"")
BUS = "06 n 02 autobus 0 bus 0 001 @ 02924116 n 0000 | a vehicle carrying many passengers"
PARIS = "15 n 01 Paris 0 001 @i 08691669 n 0000 | the capital of France"
SMEAR = "10 n 01 ethnic_slur 0 000 | a slur"
CAD = "18 n 01 cad 0 001 ;u {smear} n 0000 | someone bad"
GO = "38 v 02 travel 0 go 0 001 @ 00000001 v 0000 01 + 02 00 | change location; move"
GLAD = "00 s 02 glad(p) 0 happy 1 000 | showing joy"


def database(folder: Path) -> Path:
    """Write each entry into the file of its part of speech; an entry begins with its own byte offset in the file."""
    noun = written(folder / "data.noun", {"ethnic_slur": SMEAR, "zebra": ZEBRA, "bus": BUS, "paris": PARIS, "cad": CAD})
    index(folder / "index.noun", "n", noun)
    index(folder / "index.verb", "v", written(folder / "data.verb", {"go": GO}))
    index(folder / "index.adj", "a", written(folder / "data.adj", {"happy": GLAD}))
    (folder / "cntlist.rev").write_text(
        "bus%1:06:00:: 1 12\nbus%1:06:01:: 2 30\ngo%2:38:00:: 1 300\nhappy%5:00:00:glad:00 1 7\n")
    return folder


def written(path: Path, entries: dict[str, str]) -> dict[str, int]:
    places: dict[str, int] = {}
    text = LICENCE
    for word, entry in entries.items():
        places[word] = len(text)
        smear = f"{places.get('ethnic_slur', 0):08}"
        text += f"{len(text):08} {entry.replace('{smear}', smear)}  \n"
    path.write_text(text)
    return places


def index(path: Path, part: str, places: dict[str, int]) -> None:
    lines = [f"{word} {part} 1 1 @ 1 0 {place:08}  \n" for word, place in sorted(places.items())]
    path.write_text("".join([LICENCE, *lines]))


def found(folder: Path) -> dict[str, Meaning]:
    return {meaning.word: meaning for meaning in meanings(database(folder))}


def test_words_come_with_their_first_meaning(tmp_path: Path) -> None:
    zebra = found(tmp_path)["zebra"]
    assert (zebra.part, zebra.subject) == ("n", 5)
    assert zebra.text.startswith("any of several striped African equines; ")


def test_it_is_known_how_often_a_first_meaning_was_met(tmp_path: Path) -> None:
    assert {word: meaning.count for word, meaning in found(tmp_path).items()} == {
        "zebra": 0, "bus": 12, "Paris": 0, "go": 300, "happy": 7}


def test_all_three_parts_of_speech_are_read(tmp_path: Path) -> None:
    assert [found(tmp_path)[word].part for word in ("bus", "go", "happy")] == ["n", "v", "a"]


def test_names_keep_their_capital_letters(tmp_path: Path) -> None:
    assert found(tmp_path)["Paris"].points("@i") == {8691669}


@pytest.mark.parametrize("word", ["cad", "ethnic_slur"])
def test_what_hurts_and_what_is_no_single_word_is_left_out(tmp_path: Path, word: str) -> None:
    assert word not in found(tmp_path)


def test_words_of_a_meaning_are_counted_in_base_sixteen() -> None:
    words = " ".join(f"word{number} 0" for number in range(11))
    assert parse(f"00000001 07 n 0b {words} 000 | a text", "word9", "n", 3) == Meaning("word9", "n", 7, (), "a text", 3)


def test_marks_of_adjectives_are_no_part_of_them() -> None:
    assert parse(f"00000001 {GLAD}", "glad", "a", 0).word == "glad"
