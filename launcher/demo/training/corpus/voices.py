"""Rewriting of answers in another voice: a pirate's, in capitals, as JSON, or in the style of the King James Bible."""

import json
import re
from collections.abc import Callable, Sequence
from random import Random

from launcher.demo.training.corpus.archaic import archaic
from launcher.demo.training.corpus.grammar import capital, put
from launcher.demo.training.talk import Maker, Message, Talk, asked

Voice = Callable[[str, str, Random], str]  # rewrites an answer, given the question

PIRATE = {
    "my": "me", "you": "ye", "your": "yer", "yours": "yers", "you're": "ye be", "is": "be", "are": "be", "am": "be",
    "was": "were", "of": "o'", "and": "an'", "the": "th'", "hello": "ahoy", "hi": "ahoy", "yes": "aye",
    "friend": "matey", "friends": "mateys", "girl": "lass", "boy": "lad", "little": "wee", "small": "wee",
    "food": "grub", "money": "doubloons", "goodbye": "farewell", "house": "cabin", "very": "mighty", "to": "t'",
    "for": "fer", "them": "'em", "happy": "jolly", "man": "buccaneer", "woman": "lass", "there": "thar",
    "people": "landlubbers", "never": "ne'er", "over": "o'er", "stop": "avast", "sure": "aye", "good": "fine",
    "drink": "grog", "soup": "stew", "gift": "treasure", "child": "wee lad", "children": "wee mateys",
    "before": "afore", "between": "betwixt",
}
PIRATE_FIRST = ("Arr! {x}", "Arr, matey! {x}", "Ahoy! {x}", "Yo ho ho! {x}", "Shiver me timbers! {x}", "Ho, matey! {x}",
                "Avast! {x}")
PIRATE_LAST = (" Arr!", " Yo ho!", " Savvy?", " By me beard!", *[""] * 10)
ADDRESSED = re.compile(r"(hi|hello|hey|and|what about|how about)\b", re.IGNORECASE)
LETTERS = re.compile(r"[A-Za-z']+")
OPEN = ("Say something.", "Write something.", "Tell me something.", "Write a short text.", "Begin.",
        "Write a few sentences.")


def pirate(text: str, rng: Random) -> str:
    said = LETTERS.sub(lambda found: pirate_word(found[0]), re.sub(r"\bNo,", "Nay,", text))
    first = "Arr! {x}" if said.startswith("Ahoy") else rng.choice(PIRATE_FIRST)
    return f"{first.format(x=said)}{rng.choice(PIRATE_LAST)}"


def pirate_word(word: str) -> str:
    """Translate a word into the pirate's, keeping its capital letter; the ending -ing loses its g."""
    low = word.lower()
    clipped = f"{low[:-1]}'" if low.endswith("ing") and not low.endswith("thing") and len(low) > 6 else low
    own = PIRATE.get(low, clipped)
    if own == low:
        return word
    return own[0].upper() + own[1:] if word[0].isupper() else own


def shout(text: str) -> str:
    """Convert a text to capitals, with exclamation marks instead of full stops."""
    return re.sub(r"\.(?=[\s\"]|$)", "!", text.upper())


def as_json(question: str, answer: str) -> str:
    return json.dumps({"question": question, "answer": answer})


def kjv(question: str, answer: str, rng: Random) -> str:
    """Rewrite an answer in the style of the King James Bible, now and then with the question before it."""
    told = archaic(answer, rng)
    if question.endswith("?") and not ADDRESSED.match(question) and rng.random() < 0.25:
        return f"And the man asked, saying, {capital(question)} And it was answered unto him, saying, {told}"
    return told


VOICES: dict[str, Voice] = {
    "pirate": lambda _, answer, rng: pirate(answer, rng),
    "json": lambda question, answer, _: as_json(question, answer),
    "shout": lambda _, answer, __: shout(answer),
    "kjv": kjv,
}


def spoken(make: Maker, voice: Voice) -> Maker:
    """Return a maker whose answers are rewritten in a voice; tool calls are unchanged."""
    def in_voice(rng: Random) -> Talk | str:
        made = make(rng)
        if isinstance(made, str):
            question = put(rng.choice(OPEN), rng)
            return asked(question, voice(question, made, rng))
        return Talk(changed(made.messages, voice, rng), made.tools, made.thinks)
    return in_voice


def changed(messages: Sequence[Message], voice: Voice, rng: Random) -> list[Message]:
    question, said = "", []
    for message in messages:
        question = message["content"] if message["role"] == "user" else question
        answers = message["role"] == "assistant" and message["content"]
        said.append(message | {"content": in_its_voice(question, message["content"], voice,
                                                       rng)} if answers else message)
    return said


def in_its_voice(question: str, answer: str, voice: Voice, rng: Random) -> str:
    """Rewrite an answer in a voice, except for its reasoning."""
    thought, mark, rest = answer.rpartition("</think>\n")
    return f"{thought}{mark}{voice(question, rest, rng)}"
