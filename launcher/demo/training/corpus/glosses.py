"""Meanings of words from WordNet: short definitions of common, inoffensive words, and example sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from launcher.demo.training.corpus.definitions import DEFINITIONS
from launcher.demo.training.corpus.grammar import a, capital, one_of, put
from launcher.demo.training.corpus.wordnet import Meaning, meanings
from launcher.demo.training.talk import Maker, Talk, asked

MOST_WORDS = 16
COUNTED = {3, 5, 6, 8, 17, 18, 20,
           25}  # subjects whose nouns have an article: animals, things made, parts of bodies, ...
SUBSTANCES = 27
# Nouns of these subjects that have no article.
UNCOUNTED = frozenset((
    "clothing", "wood", "glass", "paper", "hair", "blood", "equipment", "furniture", "cloth", "cotton", "silk", "wool",
    "ground", "land", "skin", "mankind", "humanity", "grass", "corn", "machinery", "footwear", "underwear",
    "merchandise", "jewelry", "fur", "lace", "velvet", "satin", "linen", "leather", "nature", "earth", "art", "music",
    "software", "hardware", "mail", "garbage", "flesh", "fat", "muscle", "bone", "tissue", "shade", "space", "sky",
    "vegetation", "wheat", "rice", "cattle", "poultry", "people", "folk", "storage", "luggage", "baggage", "pottery",
    "embroidery", "plumbing", "wiring", "armor", "knowledge", "cognition", "feeling", "motivation", "time", "matter",
    "energy", "communication", "location", "shape", "medicine", "transportation",
))
OPENINGS = ("a ", "an ", "the ", "any ", "one ", "someone ", "somebody ", "something ")
DANGLING = (" of", " to", " from", " in", " or", " and", " by", " with", " for", " on",
            " such as")  # a definition with such an ending is incomplete
COARSE = re.compile(
    r"\b(sex|copulat|genital|penis|vagin|breast|buttock|anus|rectum|fece|faec|urin|excre|defec|naked|nude|erotic|lust"
    r"|prostitut|brothel|whore|seduc|intercourse|fornicat|pubic|testi[cs]|semen|sperm|orgas|homosex|lesbian|gay|rape"
    r"|rapist|incest|kill|murder|slaughter|massacre|suicid|tortur|execut|behead|corpse|cadaver|violen|stab|strangl"
    r"|poison|weapon|gun|bomb|missile|grenade|firearm|rifle|pistol|ammunition|warfare|drug|narcotic|heroin|cocaine"
    r"|cannabis|opium|drunk|intoxicat|slave|nazi|raci|race|victim|negro|jew|gypsy|hell|damn|devil|satan|offensive"
    r"|derogat|disparag|contempt|insult|obscen|vulgar|abort|fetus|foetus|menstru|castrat|crime|crimin|terror|wound"
    r"|blood|cruel|stupid|idiot|moron|imbecile|retard|despis|hate|death|dead|die|dying|divorce|menace|hostage|gin\b|assault|mugge)",
    re.IGNORECASE)
WORDY = re.compile(r"[A-Za-z][A-Za-z0-9 ,'-]+")
VERB = re.compile(r"\b(is|are|was|were|has|have|had|will|would|can|could|must|do|does|did|am|\w{3,}ed|I|he|she|they|we"
                  r"|you)\b", re.IGNORECASE)
PHRASE = re.compile(r"(a|an|my|his|her) (\w+ )?\w+ed\b(?! (the|a|to|in))", re.IGNORECASE)
SOMEBODY = re.compile(r"(I|he|she|the|they|we|you|this|his|her|my|it|an?) [a-z ,'-]+", re.IGNORECASE)
ASKS = ("What does {x} mean?", "What does the word {x} mean?", "Define {x}.", "What is the meaning of {x}?",
        "What does \"{x}\" mean?", "Explain the word {x}.", "Can you define {x}?", "Give me a definition of {x}.",
        "Definition of {x}", "Meaning of {x}?", "Tell me what {x} means.", "Do you know what {x} means?",
        "{x}: what does it mean?")
NOUN_ASKS = ("What is {a_x}?", "Tell me what {a_x} is.", "What exactly is {a_x}?", "Explain what {a_x} is.",
             "Do you know what {a_x} is?", "What's {a_x}?", "Can you tell me what {a_x} is?", "Tell me about {a_x}.")
VERB_ASKS = ("What does it mean to {x}?", "What does to {x} mean?", "What is it to {x}?")


@dataclass(frozen=True)
class Gloss:
    word: str
    part: str
    sentence: str
    counted: bool
    examples: tuple[str, ...] = ()


def glosses(folder: Path, least: int) -> list[Gloss]:
    """Return definitions of words that occur at least `least` times, except for words of the demo world.

    Each word is defined by its most frequent meaning.
    """
    chosen: dict[str, Meaning] = {}
    for meaning in meanings(folder):
        if meaning.count >= max(least, 1 + chosen[meaning.word].count if meaning.word in chosen else 0):
            chosen[meaning.word] = meaning
    return [gloss for meaning in chosen.values() if is_plain(meaning) for gloss in glossed(meaning)]


def is_plain(meaning: Meaning) -> bool:
    """Whether a word is short, lower case, no name and not offensive."""
    word = meaning.word
    return (word.isascii() and word.isalpha() and word.islower() and 2 < len(word) < 13 and word not in DEFINITIONS
            and not meaning.points("@i") and not COARSE.search(f"{word} {definition(meaning.text)}"))


def glossed(meaning: Meaning) -> list[Gloss]:
    """Return the meaning as a sentence, or an empty list if it does not make one."""
    text = definition(meaning.text)
    if text.endswith(DANGLING) or not 3 <= len(text.split()) <= MOST_WORDS or not WORDY.fullmatch(text):
        return []
    counted = is_counted(meaning, text)
    return [Gloss(meaning.word, meaning.part, sentence(meaning, text, counted=counted), counted, examples(meaning))]


def definition(text: str) -> str:
    """Return the text before the first semicolon, colon or example, without parts in brackets."""
    first = re.split(r"[;:\"]", re.sub(r"\([^)]*\)", " ", text), maxsplit=1)[0]
    return re.sub(r"\s+", " ", first).replace(" ,", ",").strip(" ,.")


def is_counted(meaning: Meaning, text: str) -> bool:
    many = meaning.word.endswith("s") and not meaning.word.endswith(("ss", "us", "is"))
    return (meaning.part == "n" and meaning.subject in COUNTED and text.startswith(OPENINGS)
            and not many and meaning.word not in UNCOUNTED)


def sentence(meaning: Meaning, text: str, *, counted: bool) -> str:
    if counted:
        return f"{capital(a(meaning.word))} is {text}."
    if meaning.subject == SUBSTANCES and text.startswith(OPENINGS):
        return f"{capital(meaning.word)} is {text}."
    if meaning.part == "v":
        return f"To {meaning.word} means to {text.removeprefix('to ')}."
    return f"{capital(meaning.word)} means {text}."


def examples(meaning: Meaning) -> tuple[str, ...]:
    """Return the examples that are whole sentences with a subject and contain the word."""
    found = (text.strip(" .,") for text in re.findall(r"\"([^\"]+)\"", meaning.text))
    return tuple(f"{capital(text)}." for text in found if SOMEBODY.fullmatch(text)
                 and meaning.word[:4] in text.lower() and 4 <= len(text.split()) <= MOST_WORDS and has_verb(text)
                 and not COARSE.search(text))


def has_verb(text: str) -> bool:
    """Whether a text may be a sentence: phrases contain none of these verbs."""
    return bool(VERB.search(text)) and not PHRASE.match(text)


def maker(known: Sequence[Gloss]) -> Maker:
    """Return a maker of questions for a word's meaning; the answer contains the word."""
    return lambda rng: ask(rng.choice(known), rng)


def ask(gloss: Gloss, rng: Random) -> Talk:
    asks = ASKS + 2 * NOUN_ASKS if gloss.counted else ASKS + 2 * VERB_ASKS if gloss.part == "v" else ASKS
    return asked(put(one_of(asks, rng, x=gloss.word, a_x=a(gloss.word)), rng), gloss.sentence)


def sentences(known: Sequence[Gloss]) -> Maker:
    """Return a maker of plain text: the meaning of a word, and its example sentences."""
    with_examples = [gloss for gloss in known if gloss.examples]
    return lambda rng: exemplified(rng.choice(with_examples))


def exemplified(gloss: Gloss) -> str:
    return " ".join((gloss.sentence, *gloss.examples))
