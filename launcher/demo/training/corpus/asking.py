"""Variations of requests: with and without please, punctuation and capitals.

A template ends in `?` (a question), in `.` (a remark), or without a mark: then it is an order, and words such as `Can
you` may be put before it. Slots, `{name}`, are filled last, so that the variations do not change their values.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from random import Random
from typing import Any, TypeVar

from launcher.demo.training.talk import Talk

Thing = TypeVar("Thing")

LEADS = (
    "Please {}", "Please {}.", "Can you {}?", "Could you {}?", "Can you please {}?", "Could you please {}?",
    "Will you {}?", "I want you to {}.", "I would like you to {}.", "Now {}", "Hey, {}", "{}, please.", "{}, please",
    "{} please", "{}, thanks")
OPEN_LEADS = ("Please {}", "Now {}", "Hey, {}")
GREETINGS = ("Hi! ", "Hello. ", "Hello! ", "Hi. ", "Good morning. ")
SYSTEMS = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are weft.",
    "You help children.", "Be kind and brief.")
SLOT = re.compile(r"(\b[Aa] )?\{(\w+)\}")


def put(rng: Random, ways: Sequence[str], **slots: object) -> str:
    """Return one of the templates, varied at random, with its slots filled."""
    return fill(moody(rng, rng.choice(ways)), slots)


def moody(rng: Random, way: str) -> str:
    """Vary a template at random without changing its slots."""
    said = marked(rng, way) if way[-1] in ".?" else ordered(rng, way)
    return said.lower() if rng.random() < 0.2 else said


def marked(rng: Random, way: str) -> str:
    return way[:-1] if rng.random() < 0.15 else way


def ordered(rng: Random, way: str) -> str:
    is_open = ":" in way
    if rng.random() < 0.5:
        return way if is_open else way + rng.choice(("", "", ".", ".", "!"))
    lead = rng.choice(OPEN_LEADS if is_open else LEADS)
    return lead.replace("{}", way if lead.startswith("{}") else small(way))


def small(text: str) -> str:
    """Make the first letter lower case."""
    return text if text.startswith(("JSON", "I ")) else text[:1].lower() + text[1:]


def great(text: str) -> str:
    return text[:1].upper() + text[1:]


def fill(way: str, slots: Mapping[str, object]) -> str:
    return SLOT.sub(lambda found: beside(found[1] or "", spoken(slots[found[2]])), way)


def beside(article: str, value: str) -> str:
    """Join an article and a value: an owl, not a owl."""
    return f"{article.replace(' ', 'n ') if value[:1] in 'aeiou' else article}{value}"


def slots_of(way: str) -> list[str]:
    return [name for _, name in SLOT.findall(way)]


def parted(way: str) -> tuple[str, dict[str, Any]]:
    """Split a template into its text and the values that it implies: `Turn on the light #on=true`."""
    said, _, meant = way.partition(" #")
    return said, dict(read(pair) for pair in meant.split())


def read(pair: str) -> tuple[str, Any]:
    name, _, value = pair.partition("=")
    return name, {"true": True, "false": False, "null": None}.get(value, value)


def spoken(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return listed(map(str, value)) if isinstance(value, list | tuple) else str(value)


def typed(rng: Random, values: dict[str, Any]) -> dict[str, Any]:
    """Make the values lower case now and then, since some people type no capitals, even in names."""
    return {name: lowered(value) for name, value in values.items()} if rng.random() < 0.1 else values


def lowered(value: Any) -> Any:
    if isinstance(value, list):
        return [lowered(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def listed(words: Iterable[str], last: str = " and ") -> str:
    """Join words in a list: red, blue and green."""
    *before, end = words
    return ", ".join(before) + last + end if before else end


def drawn(rng: Random, weights: Mapping[Thing, int]) -> Thing:
    """Return a random key; the values are the weights."""
    return rng.choices(list(weights), list(weights.values()))[0]


def chat(rng: Random, *turns: str, tools: Sequence[dict[str, Any]] = (), thinks: bool = False) -> Talk:
    """Return a talk with alternating turns of user and assistant, now and then with a system message or a greeting."""
    first, *others = turns
    said = (f"{rng.choice(GREETINGS)}{first}" if rng.random() < 0.04 else first, *others)
    messages = [{"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), said, strict=False)]
    return Talk([*opening(rng), *messages], tools, thinks)


def opening(rng: Random) -> list[dict[str, Any]]:
    return [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.12 else []


def thought(working: str, answer: str) -> str:
    return f"<think>\n{working}\n</think>\n{answer}"
