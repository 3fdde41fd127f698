"""Checks for flaws in generated text, and samples of such text from its makers."""

import re
from collections.abc import Callable, Iterable
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker
from launcher.demo.training.corpus.conversation_turn import ConversationTurn

CONSONANT_SOUND_WORDS = ("unicorn",)


def find_text_faults(text: str) -> list[str]:
    """Return unfilled slots, misplaced spaces, wrong articles, and a mark for text that is not ASCII."""
    faults = re.findall(r"[{}\[\]|]|  +| [.,!?]|^\s|\s$", text)
    faults += [match[0] for match in re.finditer(r"\b([Aa]n?) ([a-z]+)", text)
               if not is_right_article(match[1], match[2])]
    return faults if text.isascii() else [*faults, "not ASCII"]


def is_right_article(article: str, word: str) -> bool:
    has_vowel_sound = word[0] in "aeiou" and not word.startswith(CONSONANT_SOUND_WORDS)
    return (article.lower() == "an") == has_vowel_sound


def draw_items(maker: DocumentMaker, count: int = 200, seed: int = 7) -> list[Conversation | str]:
    rng = Random(seed)
    return [maker(rng) for _ in range(count)]


def draw_conversations(maker: DocumentMaker, count: int = 200) -> list[Conversation]:
    return [each for each in draw_items(maker, count) if isinstance(each, Conversation)]


def draw_turns(make_turns: Callable[[Random], Iterable[ConversationTurn]], count: int = 200) -> list[ConversationTurn]:
    rng = Random(7)
    return [turn for _ in range(count) for turn in make_turns(rng)]


def get_assistant_texts(talk: Conversation) -> list[str]:
    return [message["content"] for message in talk.messages if message["role"] == "assistant"]


def count_sentences(text: str) -> int:
    """Count sentences; a sentence inside a quotation is part of the one around it."""
    return len(re.findall(r"[.!?](?= |$)|[.!?]\"(?= [A-Z\"]|$)", re.sub(r"\"[^\"]*?[^.!?\"]*[.!?] ", '"', text)))
