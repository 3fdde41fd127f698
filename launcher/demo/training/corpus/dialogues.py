"""Conversations of one to four turns about the demo world, some with a system message, which may ask for brevity."""

from collections.abc import Sequence
from random import Random

from launcher.demo.training.conversation import Conversation, Message, make_turn_messages
from launcher.demo.training.corpus import echoes, fact_questions, poems, smalltalk
from launcher.demo.training.corpus.conversation_turn import ConversationTurn, TurnsMaker
from launcher.demo.training.corpus.template_expansion import vary_question

PLAIN_SYSTEM_MESSAGES = ("You are a helpful assistant.", "You are a friendly assistant.",
                         "You are weft, a small model.", "You help people.", "You are a kind teacher.",
                         "Answer in full sentences.", "Answer the question.", "Be helpful and honest.",
                         "You are talking to a child.", "You are a helpful AI assistant.", "Be polite.",
                         "You are an expert.")
BRIEF_SYSTEM_MESSAGES = ("Answer briefly.", "Answer in one word.", "Be brief.", "Keep it short.", "Give short answers.",
                         "Answer with as few words as possible.", "You are a helpful assistant. Answer briefly.",
                         "Short answers only.")
# not varied, since their text is to be copied
COPYING_TURN_MAKERS = (echoes.make_copy_turns, echoes.make_lower_case_turns)
WEIGHTED_TURN_MAKERS: tuple[tuple[TurnsMaker, float], ...] = (
    (fact_questions.make_fact_turns, 10), (fact_questions.make_size_comparison_turns, 1),
    (fact_questions.make_calendar_list_turns, 0.4),
    (fact_questions.make_unknown_word_turns, 0.6), (smalltalk.make_small_talk_turns, 5), (smalltalk.make_mood_turns,
                                                                                          0.7),
    (smalltalk.make_joke_turns, 0.7), (smalltalk.make_unanswerable_turns, 1.5), (echoes.make_copy_turns, 2),
    (echoes.make_lower_case_turns, 0.3), (echoes.make_remembered_fact_turns,
                                          1.2),
    (echoes.make_unknown_fact_turns, 0.2), (poems.make_poem_turns, 1.2),)


def make_random_turns(rng: Random) -> list[ConversationTurn]:
    kind = rng.choices([turns for turns, _ in WEIGHTED_TURN_MAKERS], [weight for _, weight in WEIGHTED_TURN_MAKERS])[0]
    return [turn if kind in COPYING_TURN_MAKERS else turn._replace(question=vary_question(turn.question, rng))
            for turn in kind(rng)]


def make_dialogue(rng: Random) -> Conversation:
    turns = make_random_turns(rng)
    while len(turns) < 4 and rng.random() < 0.25:
        turns += make_random_turns(rng)
    return Conversation([*make_messages(turns[:4], *choose_system_message(rng))])


def choose_system_message(rng: Random) -> tuple[str, bool]:
    """Return a system message or "", and whether it asks for short answers."""
    is_brief = rng.random() < 0.08
    if is_brief:
        return rng.choice(BRIEF_SYSTEM_MESSAGES), True
    return (rng.choice(PLAIN_SYSTEM_MESSAGES) if rng.random() < 0.2 else ""), False


def make_messages(turns: Sequence[ConversationTurn], system: str, is_brief: bool) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += make_turn_messages(turn.question,
                                       turn.brief_answer if is_brief and turn.brief_answer else turn.answer)
    return messages
