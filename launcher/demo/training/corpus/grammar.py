"""Expansion of templates, with `[this|that]` for a random choice and `{slot}` for a value; variations of typing."""

import re
from random import Random

CHOICE = re.compile(r"\[([^\[\]]*)\]")
FIRST_VOWEL = re.compile(r"[aeiou]", re.IGNORECASE)
ASKING = re.compile(
    r"(what|which|who|where|how|why|does|do|is|can|could|tell|give|name|find|write|make|may)\b(?! about)",
    re.IGNORECASE)
ODD_ARTICLES = {"hour": "an", "honest": "an", "one": "a", "once": "a"}
SOUNDS_LIKE_YOU = ("uni", "use", "usu", "uti", "ute", "eu", "uku")
OPEN, SHUT, ENDINGS = "bcdfghjklmnprstvwz", "aeiou", ("", *"nrlst")


def expand(template: str, rng: Random, **slots: str) -> str:
    """Expand a template: first the inner choices, then the outer ones, then the slots."""
    while CHOICE.search(template):
        template = CHOICE.sub(lambda found: rng.choice(found[1].split("|")), template)
    return template.format_map(slots)


def one_of(templates: tuple[str, ...], rng: Random, **slots: str) -> str:
    return expand(rng.choice(templates), rng, **slots)


def article(words: str) -> str:
    first = re.split(r"[\s-]", words, maxsplit=1)[0].lower()
    if first in ODD_ARTICLES:
        return ODD_ARTICLES[first]
    return "an" if FIRST_VOWEL.match(first) and not first.startswith(SOUNDS_LIKE_YOU) else "a"


def a(words: str) -> str:
    return f"{article(words)} {words}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def forms(**words: str) -> dict[str, str]:
    """Return four slots for each word: itself, with its article, and both capitalised: x, a_x, X and A_x."""
    return {name: form for word, text in words.items() for name, form in (
        (word, text), (f"a_{word}", a(text)), (word.upper(), capital(text)), (f"A_{word}", capital(a(text))))}


def invented(rng: Random, least: int = 2, most: int = 3) -> str:
    """Return a made-up word, which an answer can only copy."""
    syllables = [rng.choice(OPEN) + rng.choice(SHUT) for _ in range(rng.randint(least, most))]
    return "".join((*syllables, rng.choice(ENDINGS)))


def put(question: str, rng: Random) -> str:
    """Vary a question as people type it: with a please, without the final mark, in lower case, or unchanged."""
    if rng.random() < 0.15:
        question = courteous(question, rng)
    if rng.random() < 0.25:
        question = question.rstrip(".?!")
    return question.lower() if rng.random() < 0.2 else question


def courteous(question: str, rng: Random) -> str:
    """Add a please or a greeting, if the text is a request."""
    if not ASKING.match(question) or "lease" in question:
        return question
    bare = question.rstrip(".?!")
    mark = question[len(bare):]
    return rng.choice((f"Hi! {question}", f"Hello! {question}", f"{bare}, please{mark}", f"{bare} please{mark}"))
