"""Random variation of request templates (please, punctuation, capitals) and filling of their slots.

A template ends in `?` (a question), in `.` (a remark), or without a mark: then it is an order, and words such as `Can
you` may be put before it. Slots, `{name}`, are filled last, so that the variations do not change their
values.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from random import Random
from typing import Any, TypeVar

from launcher.demo.training.conversation import Conversation

Item = TypeVar("Item")

INSTRUCTION_WRAPPERS = (
    "Please {}", "Please {}.", "Can you {}?", "Could you {}?", "Can you please {}?", "Could you please {}?",
    "Will you {}?", "I want you to {}.", "I would like you to {}.", "Now {}", "Hey, {}", "{}, please.", "{}, please",
    "{} please", "{}, thanks")
COLON_INSTRUCTION_WRAPPERS = ("Please {}", "Now {}", "Hey, {}")
GREETINGS = ("Hi! ", "Hello. ", "Hello! ", "Hi. ", "Good morning. ")
SYSTEM_MESSAGES = (
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are weft.",
    "You help children.", "Be kind and brief.")
SLOT_PATTERN = re.compile(r"(\b[Aa] )?\{(\w+)\}")


def fill_random_template(rng: Random, templates: Sequence[str], **slots: object) -> str:
    """Return one of the templates, varied at random, with its slots filled."""
    return fill_slots(vary_template(rng, rng.choice(templates)), slots)


def vary_template(rng: Random, template: str) -> str:
    """Vary a template at random without changing its slots."""
    varied = vary_final_punctuation(rng, template) if template[-1] in ".?" else vary_instruction(rng, template)
    return varied.lower() if rng.random() < 0.2 else varied


def vary_final_punctuation(rng: Random, template: str) -> str:
    return template[:-1] if rng.random() < 0.15 else template


def vary_instruction(rng: Random, template: str) -> str:
    is_open = ":" in template
    if rng.random() < 0.5:
        return template if is_open else template + rng.choice(("", "", ".", ".", "!"))
    wrapper = rng.choice(COLON_INSTRUCTION_WRAPPERS if is_open else INSTRUCTION_WRAPPERS)
    return wrapper.replace("{}", template if wrapper.startswith("{}") else lowercase_first_letter(template))


def lowercase_first_letter(text: str) -> str:
    """Make the first letter lower case."""
    return text if text.startswith(("JSON", "I ")) else text[:1].lower() + text[1:]


def capitalize_first_letter(text: str) -> str:
    return text[:1].upper() + text[1:]


def fill_slots(template: str, slots: Mapping[str, object]) -> str:
    return SLOT_PATTERN.sub(lambda match: join_article_and_value(match[1] or "", format_value(slots[match[2]])),
                            template)


def join_article_and_value(article: str, value: str) -> str:
    """Join an article and a value: an owl, not a owl."""
    return f"{article.replace(' ', 'n ') if value[:1] in 'aeiou' else article}{value}"


def list_slots(template: str) -> list[str]:
    return [name for _, name in SLOT_PATTERN.findall(template)]


def split_implied_values(template: str) -> tuple[str, dict[str, Any]]:
    """Split a template into its text and the values that it implies: `Turn on the light #on=true`."""
    visible_template, _, implied_values = template.partition(" #")
    return visible_template, dict(parse_implied_value(pair) for pair in implied_values.split())


def parse_implied_value(pair: str) -> tuple[str, Any]:
    name, _, value = pair.partition("=")
    return name, {"true": True, "false": False, "null": None}.get(value, value)


def format_value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return join_words(map(str, value)) if isinstance(value, list | tuple) else str(value)


def randomly_lowercase_values(rng: Random, values: dict[str, Any]) -> dict[str, Any]:
    """Make the values lower case now and then, since some people type no capitals, even in names."""
    return {name: lowercase_value(value) for name, value in values.items()} if rng.random() < 0.1 else values


def lowercase_value(value: Any) -> Any:
    if isinstance(value, list):
        return [lowercase_value(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def join_words(words: Iterable[str], last_separator: str = " and ") -> str:
    """Join words in a list: red, blue and green."""
    *first_words, last_word = words
    return ", ".join(first_words) + last_separator + last_word if first_words else last_word


def choose_weighted(rng: Random, weights: Mapping[Item, int]) -> Item:
    """Return a random key; the values are the weights."""
    return rng.choices(list(weights), list(weights.values()))[0]


def make_conversation(rng: Random, *turns: str, tools: Sequence[dict[str, Any]] = (),
                      has_reasoning: bool = False) -> Conversation:
    """Return a talk with alternating turns of user and assistant, now and then with a system message or a greeting."""
    first, *later_turns = turns
    turn_texts = (f"{rng.choice(GREETINGS)}{first}" if rng.random() < 0.04 else first, *later_turns)
    messages = [{"role": role, "content": text}
                for role, text in zip(cycle(("user", "assistant")), turn_texts, strict=False)]
    return Conversation([*make_optional_system_messages(rng), *messages], tools, has_reasoning)


def make_optional_system_messages(rng: Random) -> list[dict[str, Any]]:
    return [{"role": "system", "content": rng.choice(SYSTEM_MESSAGES)}] if rng.random() < 0.12 else []


def prepend_reasoning(reasoning: str, answer: str) -> str:
    return f"<think>\n{reasoning}\n</think>\n{answer}"
