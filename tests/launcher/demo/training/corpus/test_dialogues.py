"""Tests of conversations: roles alternate, and users who request short answers get them."""

from support.prose_checks import draw_conversations, draw_items, find_text_faults, get_assistant_texts

from launcher.demo.training.corpus.conversation_turn import ConversationTurn
from launcher.demo.training.corpus.dialogues import BRIEF_SYSTEM_MESSAGES, make_dialogue, make_messages


def test_same_seed_gives_the_same_talks() -> None:
    assert draw_items(make_dialogue) == draw_items(make_dialogue)


def test_talks_are_written_without_faults() -> None:
    texts = [message["content"] for talk in draw_conversations(make_dialogue, 500) for message in talk.messages]
    assert [(text, find_text_faults(text)) for text in texts if find_text_faults(text)] == []


def test_talks_have_one_to_four_turns() -> None:
    turn_counts = set()
    for talk in draw_conversations(make_dialogue, 500):
        roles = [message["role"] for message in talk.messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        turn_counts.add(len(roles) // 2)
    assert turn_counts == {1, 2, 3, 4}


def test_a_system_message_comes_first_or_not_at_all() -> None:
    assert {talk.messages[0]["role"] for talk in draw_conversations(make_dialogue)} == {"system", "user"}
    assert all(message["role"] != "system" for talk in draw_conversations(make_dialogue)
               for message in talk.messages[1:])


def test_brief_answers_are_given_on_request() -> None:
    turn = ConversationTurn("What does a cow say?", "A cow says moo.", "Moo.")
    assert make_messages([turn], "Be brief.", is_brief=True)[-1]["content"] == "Moo."
    assert make_messages([turn], "", is_brief=False)[-1]["content"] == "A cow says moo."


def test_long_answer_is_given_if_there_is_no_short_one() -> None:
    assert make_messages([ConversationTurn("Hi", "Hello!")], "Be brief.", is_brief=True)[-1]["content"] == "Hello!"


def test_most_brief_answers_are_short() -> None:
    brief = [answer for talk in draw_conversations(make_dialogue, 1500)
             if talk.messages[0]["content"] in BRIEF_SYSTEM_MESSAGES for answer in get_assistant_texts(talk)]
    assert sum(len(answer) < 20 for answer in brief) > len(brief) / 2
