"""Expansion of templates, with `[this|that]` for a random choice and `{slot}` for a value; variations of typing."""

import re
from random import Random

CHOICE_PATTERN = re.compile(r"\[([^\[\]]*)\]")
VOWEL_PATTERN = re.compile(r"[aeiou]", re.IGNORECASE)
REQUEST_START_PATTERN = re.compile(
    r"(what|which|who|where|how|why|does|do|is|can|could|tell|give|name|find|write|make|may)\b(?! about)",
    re.IGNORECASE)
IRREGULAR_ARTICLES = {"hour": "an", "honest": "an", "one": "a", "once": "a"}
YOU_SOUND_PREFIXES = ("uni", "use", "usu", "uti", "ute", "eu", "uku")
SYLLABLE_CONSONANTS, SYLLABLE_VOWELS, WORD_ENDINGS = "bcdfghjklmnprstvwz", "aeiou", ("", *"nrlst")


def expand_template(template: str, rng: Random, **slots: str) -> str:
    """Expand a template: first the inner choices, then the outer ones, then the slots."""
    while CHOICE_PATTERN.search(template):
        template = CHOICE_PATTERN.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template.format_map(slots)


def expand_random_template(templates: tuple[str, ...], rng: Random, **slots: str) -> str:
    return expand_template(rng.choice(templates), rng, **slots)


def choose_article(words: str) -> str:
    first = re.split(r"[\s-]", words, maxsplit=1)[0].lower()
    if first in IRREGULAR_ARTICLES:
        return IRREGULAR_ARTICLES[first]
    return "an" if VOWEL_PATTERN.match(first) and not first.startswith(YOU_SOUND_PREFIXES) else "a"


def add_article(words: str) -> str:
    return f"{choose_article(words)} {words}"


def capitalize_first_letter(text: str) -> str:
    return text[:1].upper() + text[1:]


def make_slot_forms(**words: str) -> dict[str, str]:
    """Return four slots for each word: itself, with its article, and both capitalised: x, a_x, X and A_x."""
    return {name: form for word, text in words.items()
            for name, form in ((word, text), (f"a_{word}", add_article(text)),
                               (word.upper(), capitalize_first_letter(text)),
                               (f"A_{word}", capitalize_first_letter(add_article(text))))}


def invent_word(rng: Random, min_syllables: int = 2, max_syllables: int = 3) -> str:
    """Return a made-up word, which an answer can only copy."""
    syllables = [rng.choice(SYLLABLE_CONSONANTS) + rng.choice(SYLLABLE_VOWELS)
                 for _ in range(rng.randint(min_syllables, max_syllables))]
    return "".join((*syllables, rng.choice(WORD_ENDINGS)))


def vary_question(question: str, rng: Random) -> str:
    """Vary a question as people type it: with a please, without the final mark, in lower case, or unchanged."""
    if rng.random() < 0.15:
        question = add_politeness(question, rng)
    if rng.random() < 0.25:
        question = question.rstrip(".?!")
    return question.lower() if rng.random() < 0.2 else question


def add_politeness(question: str, rng: Random) -> str:
    """Add a please or a greeting, if the text is a request."""
    if not REQUEST_START_PATTERN.match(question) or "lease" in question:
        return question
    bare = question.rstrip(".?!")
    mark = question[len(bare):]
    return rng.choice((f"Hi! {question}", f"Hello! {question}", f"{bare}, please{mark}", f"{bare} please{mark}"))
