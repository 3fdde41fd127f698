"""Meanings of words from WordNet: short definitions of common, inoffensive words, and example sentences."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker, make_one_turn_conversation
from launcher.demo.training.corpus.definitions_by_word import DEFINITIONS_BY_WORD
from launcher.demo.training.corpus.sources.wordnet import WordMeaning, read_first_meanings
from launcher.demo.training.corpus.template_expansion import (
    add_article,
    capitalize_first_letter,
    expand_random_template,
    vary_question,
)

MAX_WORDS = 16
COUNTED_SUBJECTS = {3, 5, 6, 8, 17, 18, 20,
                    25}  # subjects whose nouns have an article: animals, things made, parts of bodies, ...
SUBSTANCE_SUBJECT = 27
# Nouns of these subjects that have no article.
UNCOUNTED_NOUNS = frozenset((
    "clothing", "wood", "glass", "paper", "hair", "blood", "equipment", "furniture", "cloth", "cotton", "silk", "wool",
    "ground", "land", "skin", "mankind", "humanity", "grass", "corn", "machinery", "footwear", "underwear",
    "merchandise", "jewelry", "fur", "lace", "velvet", "satin", "linen", "leather", "nature", "earth", "art", "music",
    "software", "hardware", "mail", "garbage", "flesh", "fat", "muscle", "bone", "tissue", "shade", "space", "sky",
    "vegetation", "wheat", "rice", "cattle", "poultry", "people", "folk", "storage", "luggage", "baggage", "pottery",
    "embroidery", "plumbing", "wiring", "armor", "knowledge", "cognition", "feeling", "motivation", "time", "matter",
    "energy", "communication", "location", "shape", "medicine", "transportation",
))
DEFINITION_OPENINGS = ("a ", "an ", "the ", "any ", "one ", "someone ", "somebody ", "something ")
INCOMPLETE_ENDINGS = (" of", " to", " from", " in", " or", " and", " by", " with", " for", " on",
                      " such as")  # a definition with such an ending is incomplete
OFFENSIVE_WORDS_PATTERN = re.compile(
    r"\b(sex|copulat|genital|penis|vagin|breast|buttock|anus|rectum|fece|faec|urin|excre|defec|naked|nude|erotic|lust"
    r"|prostitut|brothel|whore|seduc|intercourse|fornicat|pubic|testi[cs]|semen|sperm|orgas|homosex|lesbian|gay|rape"
    r"|rapist|incest|kill|murder|slaughter|massacre|suicid|tortur|execut|behead|corpse|cadaver|violen|stab|strangl"
    r"|poison|weapon|gun|bomb|missile|grenade|firearm|rifle|pistol|ammunition|warfare|drug|narcotic|heroin|cocaine"
    r"|cannabis|opium|drunk|intoxicat|slave|nazi|raci|race|victim|negro|jew|gypsy|hell|damn|devil|satan|offensive"
    r"|derogat|disparag|contempt|insult|obscen|vulgar|abort|fetus|foetus|menstru|castrat|crime|crimin|terror|wound"
    r"|blood|cruel|stupid|idiot|moron|imbecile|retard|despis|hate|death|dead|die|dying|divorce|menace|hostage|gin\b|assault|mugge)",
    re.IGNORECASE)
PLAIN_TEXT_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9 ,'-]+")
VERB_PATTERN = re.compile(
    r"\b(is|are|was|were|has|have|had|will|would|can|could|must|do|does|did|am|\w{3,}ed|I|he|she|they|we" r"|you)\b",
    re.IGNORECASE)
PARTICIPLE_PHRASE_PATTERN = re.compile(r"(a|an|my|his|her) (\w+ )?\w+ed\b(?! (the|a|to|in))", re.IGNORECASE)
SUBJECT_START_PATTERN = re.compile(r"(I|he|she|the|they|we|you|this|his|her|my|it|an?) [a-z ,'-]+", re.IGNORECASE)
MEANING_QUESTIONS = ("What does {x} mean?", "What does the word {x} mean?", "Define {x}.",
                     "What is the meaning of {x}?", "What does \"{x}\" mean?", "Explain the word {x}.",
                     "Can you define {x}?", "Give me a definition of {x}.", "Definition of {x}", "Meaning of {x}?",
                     "Tell me what {x} means.", "Do you know what {x} means?", "{x}: what does it mean?")
NOUN_QUESTIONS = ("What is {a_x}?", "Tell me what {a_x} is.", "What exactly is {a_x}?", "Explain what {a_x} is.",
                  "Do you know what {a_x} is?", "What's {a_x}?", "Can you tell me what {a_x} is?",
                  "Tell me about {a_x}.")
VERB_QUESTIONS = ("What does it mean to {x}?", "What does to {x} mean?", "What is it to {x}?")


@dataclass(frozen=True)
class WordGloss:
    """Meaning of a word as a sentence, and example sentences."""

    word: str
    part_of_speech: str
    sentence: str
    is_countable: bool
    examples: tuple[str, ...] = ()


def read_glosses(folder: Path, min_occurrences: int) -> list[WordGloss]:
    """Return definitions of words that occur at least `min_occurrences` times, except for words of the demo world.

    Each word is defined by its most frequent meaning.
    """
    chosen: dict[str, WordMeaning] = {}
    for meaning in read_first_meanings(folder):
        if meaning.num_occurrences >= max(min_occurrences,
                                          1 + chosen[meaning.word].num_occurrences if meaning.word in chosen else 0):
            chosen[meaning.word] = meaning
    return [gloss for meaning in chosen.values() if is_simple_word(meaning) for gloss in make_optional_gloss(meaning)]


def is_simple_word(meaning: WordMeaning) -> bool:
    """Whether a word is short, lower case, no name and not offensive."""
    word = meaning.word
    return (word.isascii() and word.isalpha() and word.islower() and 2 < len(word) < 13
            and word not in DEFINITIONS_BY_WORD and not meaning.find_pointer_targets("@i")
            and not OFFENSIVE_WORDS_PATTERN.search(f"{word} {extract_definition(meaning.gloss_text)}"))


def make_optional_gloss(meaning: WordMeaning) -> list[WordGloss]:
    """Return the meaning as a sentence, or an empty list if it does not make one."""
    text = extract_definition(meaning.gloss_text)
    if text.endswith(INCOMPLETE_ENDINGS) or not 3 <= len(
        text.split()) <= MAX_WORDS or not PLAIN_TEXT_PATTERN.fullmatch(text):
        return []
    is_countable = is_countable_noun(meaning, text)
    return [WordGloss(meaning.word, meaning.part_of_speech,
                      make_definition_sentence(meaning, text, is_countable=is_countable), is_countable,
                      extract_example_sentences(meaning))]


def extract_definition(text: str) -> str:
    """Return the text before the first semicolon, colon or example, without parts in brackets."""
    first = re.split(r"[;:\"]", re.sub(r"\([^)]*\)", " ", text), maxsplit=1)[0]
    return re.sub(r"\s+", " ", first).replace(" ,", ",").strip(" ,.")


def is_countable_noun(meaning: WordMeaning, text: str) -> bool:
    many = meaning.word.endswith("s") and not meaning.word.endswith(("ss", "us", "is"))
    return (meaning.part_of_speech == "n" and meaning.subject_number in COUNTED_SUBJECTS
            and text.startswith(DEFINITION_OPENINGS) and not many and meaning.word not in UNCOUNTED_NOUNS)


def make_definition_sentence(meaning: WordMeaning, text: str, *, is_countable: bool) -> str:
    if is_countable:
        return f"{capitalize_first_letter(add_article(meaning.word))} is {text}."
    if meaning.subject_number == SUBSTANCE_SUBJECT and text.startswith(DEFINITION_OPENINGS):
        return f"{capitalize_first_letter(meaning.word)} is {text}."
    if meaning.part_of_speech == "v":
        return f"To {meaning.word} means to {text.removeprefix('to ')}."
    return f"{capitalize_first_letter(meaning.word)} means {text}."


def extract_example_sentences(meaning: WordMeaning) -> tuple[str, ...]:
    """Return the examples that are whole sentences with a subject and contain the word."""
    examples = (text.strip(" .,") for text in re.findall(r"\"([^\"]+)\"", meaning.gloss_text))
    return tuple(f"{capitalize_first_letter(text)}." for text in examples if SUBJECT_START_PATTERN.fullmatch(text)
                 and meaning.word[:4] in text.lower() and 4 <= len(text.split()) <= MAX_WORDS and has_verb(text)
                 and not OFFENSIVE_WORDS_PATTERN.search(text))


def has_verb(text: str) -> bool:
    """Whether a text may be a sentence: phrases contain none of these verbs."""
    return bool(VERB_PATTERN.search(text)) and not PARTICIPLE_PHRASE_PATTERN.match(text)


def make_meaning_question_maker(known_glosses: Sequence[WordGloss]) -> DocumentMaker:
    """Return a maker of questions for a word's meaning; the answer contains the word."""
    return lambda rng: make_meaning_question(rng.choice(known_glosses), rng)


def make_meaning_question(gloss: WordGloss, rng: Random) -> Conversation:
    question_templates = (MEANING_QUESTIONS + 2 * NOUN_QUESTIONS if gloss.is_countable
                          else MEANING_QUESTIONS + 2 * VERB_QUESTIONS if gloss.part_of_speech == "v"
                          else MEANING_QUESTIONS)
    return make_one_turn_conversation(vary_question(expand_random_template(question_templates, rng, x=gloss.word,
                                                                           a_x=add_article(gloss.word)), rng),
                                      gloss.sentence)


def make_gloss_text_maker(known: Sequence[WordGloss]) -> DocumentMaker:
    """Return a maker of plain text: the meaning of a word, and its example sentences."""
    with_examples = [gloss for gloss in known if gloss.examples]
    return lambda rng: format_gloss_text(rng.choice(with_examples))


def format_gloss_text(gloss: WordGloss) -> str:
    return " ".join((gloss.sentence, *gloss.examples))
