"""Tests of conversations: roles alternate, and users who request short answers get them."""

from support.prose_checks import answers, faults, made, talks

from launcher.demo.training.corpus.dialogues import BRIEF_SYSTEMS, dialogue, written
from launcher.demo.training.corpus.turns import Turn


def test_the_same_seed_holds_the_same_talks() -> None:
    assert made(dialogue) == made(dialogue)


def test_talks_are_written_without_faults() -> None:
    texts = [message["content"] for talk in talks(dialogue, 500) for message in talk.messages]
    assert [(text, faults(text)) for text in texts if faults(text)] == []


def test_who_asks_is_answered_one_to_four_times() -> None:
    found = set()
    for talk in talks(dialogue, 500):
        roles = [message["role"] for message in talk.messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        found.add(len(roles) // 2)
    assert found == {1, 2, 3, 4}


def test_a_system_message_comes_first_or_not_at_all() -> None:
    assert {talk.messages[0]["role"] for talk in talks(dialogue)} == {"system", "user"}
    assert all(message["role"] != "system" for talk in talks(dialogue) for message in talk.messages[1:])


def test_who_asks_for_short_answers_gets_them() -> None:
    turn = Turn("What does a cow say?", "A cow says moo.", "Moo.")
    assert written([turn], "Be brief.", brief=True)[-1]["content"] == "Moo."
    assert written([turn], "", brief=False)[-1]["content"] == "A cow says moo."


def test_where_there_is_no_short_answer_the_long_one_is_given() -> None:
    assert written([Turn("Hi", "Hello!")], "Be brief.", brief=True)[-1]["content"] == "Hello!"


def test_short_answers_are_shorter() -> None:
    brief = [answer for talk in talks(dialogue, 1500) if talk.messages[0]["content"] in BRIEF_SYSTEMS
             for answer in answers(talk)]
    assert sum(len(answer) < 20 for answer in brief) > len(brief) / 2
