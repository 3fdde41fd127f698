"""Conversations of one to four turns about the demo world, some with a system message, which may ask for brevity."""

from collections.abc import Sequence
from random import Random

from launcher.demo.training.corpus import echoes, lore, poems, smalltalk
from launcher.demo.training.corpus.grammar import put
from launcher.demo.training.corpus.turns import Turn, Turns
from launcher.demo.training.talk import Message, Talk, exchange

PLAIN_SYSTEMS = ("You are a helpful assistant.", "You are a friendly assistant.", "You are weft, a small model.",
                 "You help people.", "You are a kind teacher.", "Answer in full sentences.", "Answer the question.",
                 "Be helpful and honest.", "You are talking to a child.", "You are a helpful AI assistant.",
                 "Be polite.", "You are an expert.")
BRIEF_SYSTEMS = ("Answer briefly.", "Answer in one word.", "Be brief.", "Keep it short.", "Give short answers.",
                 "Answer with as few words as possible.", "You are a helpful assistant. Answer briefly.",
                 "Short answers only.")
COPYING = (echoes.copies, echoes.lowered)  # not varied, since their text is to be copied
KINDS: tuple[tuple[Turns, float], ...] = (
    (lore.known, 10), (lore.sizes, 1), (lore.lists, 0.4), (lore.unheard, 0.6), (smalltalk.said, 5), (smalltalk.moods,
                                                                                                     0.7),
    (smalltalk.jokes, 0.7), (smalltalk.outside, 1.5), (echoes.copies, 2), (echoes.lowered, 0.3), (echoes.remembered,
                                                                                                  1.2),
    (echoes.unknown_of, 0.2), (poems.poems, 1.2),
)


def some(rng: Random) -> list[Turn]:
    kind = rng.choices([turns for turns, _ in KINDS], [weight for _, weight in KINDS])[0]
    return [turn if kind in COPYING else turn._replace(question=put(turn.question, rng)) for turn in kind(rng)]


def dialogue(rng: Random) -> Talk:
    turns = some(rng)
    while len(turns) < 4 and rng.random() < 0.25:
        turns += some(rng)
    return Talk([*written(turns[:4], *opening(rng))])


def opening(rng: Random) -> tuple[str, bool]:
    """Return a system message or "", and whether it asks for short answers."""
    brief = rng.random() < 0.08
    if brief:
        return rng.choice(BRIEF_SYSTEMS), True
    return (rng.choice(PLAIN_SYSTEMS) if rng.random() < 0.2 else ""), False


def written(turns: Sequence[Turn], system: str, brief: bool) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += exchange(turn.question, turn.brief if brief and turn.brief else turn.answer)
    return messages
