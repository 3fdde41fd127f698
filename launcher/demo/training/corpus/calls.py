"""Talks in which tools are offered: calls, replies after them, and requests for which no call is right.

A call uses an offered tool, the names in its schema and the values in the request.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from launcher.demo.training.corpus.asking import (
    drawn,
    fill,
    listed,
    moody,
    opening,
    parted,
    put,
    slots_of,
    small,
    thought,
)
from launcher.demo.training.corpus.chores import CHORES
from launcher.demo.training.corpus.counting import counting
from launcher.demo.training.corpus.errand import Errand, Values, draw, parameters
from launcher.demo.training.corpus.invented import invented
from launcher.demo.training.corpus.lookups import LOOKUPS
from launcher.demo.training.corpus.objects import pairs
from launcher.demo.training.corpus.spelling import spelling
from launcher.demo.training.corpus.sums import sums
from launcher.demo.training.talk import Maker, Message, Talk, Tool

ERRANDS = (*LOOKUPS, *CHORES)
ROOM = 900  # maximum characters of all tools together, since the model's context is short
THINKS = 0.2  # share of talks with reasoning
EXPLICIT = (
    "Use {tool} with {pairs}", "Call {tool} with {pairs}", "Use the tool {tool} with {pairs}",
    "Run {tool} with {pairs}", "Call the tool {tool}: {pairs}", "Use {tool}: {pairs}",
    "I want you to use {tool} with {pairs}.", "Call {tool}: {pairs}")
ERRORS = (
    "it was not found", "there is no answer", "it is too late", "nobody is there", "the line is busy",
    "try again later")
SMALL_TALK = {
    "Hello": "Hello! How can I help you?", "Hi!": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?", "Thank you": "You are welcome.", "Thanks!": "You are welcome.",
    "How are you?": "I am fine, thank you.", "Goodbye": "Goodbye!", "Bye": "Goodbye!",
    "Who are you?": "I am the demo model of weft, a small language model.",
}
OWN = ("add", "multiply")  # tasks that the model solves itself if there is no tool for them
NO_TOOL = "Sorry, I have no tool for that."
AND = (
    "{first} And then: {second}", "{first} Also: {second}", "{first}\n{second}", "1. {first}\n2. {second}",
    "{first} After that: {second}")


def offer(rng: Random, *wanted: Errand, without: Sequence[str] = ()) -> list[Tool]:
    """Return the wanted tools among up to three others, in random order."""
    wordy = rng.random() < 0.2
    tools = [errand.tool(wordy=wordy) for errand in wanted]
    taken = {*without, *(errand.name for errand in wanted)}
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        other = some_errand(rng)
        tool = other.tool(wordy=wordy)
        if other.name not in taken and len(json.dumps([*tools, tool])) < ROOM:
            tools.append(tool)
            taken.add(other.name)
    rng.shuffle(tools)
    return tools


def offer_others(rng: Random, *names: str) -> list[Tool]:
    """Return at least one tool, and none of these names."""
    return offer(rng, without=names) or [rng.choice([errand for errand in ERRANDS if errand.name not in names]).tool()]


def some_errand(rng: Random) -> Errand:
    return invented(rng) if rng.random() < 0.35 else rng.choice(ERRANDS)


def asked(rng: Random, errand: Errand) -> tuple[str, Values]:
    """Return a request and its values, mostly in plain words, sometimes with the names of tool and parameters."""
    if rng.random() > 0.08:
        return errand.ask(rng)
    values = draw(rng, errand.takes, [name for name, _, must in parameters(errand.takes) if must])
    return put(rng, EXPLICIT, tool=errand.name, pairs=pairs(rng, values)), values


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, work: str = "") -> Message:
    return {"role": "assistant", "content": thought(work, text) if work else text}


def call(*wanted: tuple[str, Values], work: str = "") -> Message:
    made = [{"type": "function", "function": {"name": name, "arguments": values}} for name, values in wanted]
    return {**assistant("", work), "tool_calls": made}


def answer(content: Any) -> Message:
    return {"role": "tool", "content": json.dumps(content)}


def why(errand: Errand, found: str, *, thinks: bool) -> str:
    return f"The user wants me to {small(errand.about)}. {found}" if thinks else ""


def called(rng: Random) -> Talk:
    thinks = rng.random() < THINKS
    turns, errand, _ = first_call(rng, thinks=thinks)
    return Talk([*opening(rng), *turns], offer(rng, errand), thinks)


def answered(rng: Random) -> Talk:
    thinks = rng.random() < THINKS
    turns, errand, values = first_call(rng, thinks=thinks)
    return Talk([*opening(rng), *turns, *told(rng, errand, values, thinks=thinks)], offer(rng, errand), thinks)


def first_call(rng: Random, *, thinks: bool) -> tuple[list[Message], Errand, Values]:
    errand = some_errand(rng)
    question, values = asked(rng, errand)
    work = why(errand, f"{errand.name} fits.", thinks=thinks)
    return [user(question), call((errand.name, values), work=work)], errand, values


def told(rng: Random, errand: Errand, values: Values, *, thinks: bool) -> list[Message]:
    """Return the result of a tool and the reply to it."""
    work = f"{errand.name} has answered." if thinks else ""
    if rng.random() < 0.08:
        error = rng.choice(ERRORS)
        return [answer({"error": error}), assistant(f"Sorry, that did not work: {error}.", work)]
    found = errand.answer(rng, values)
    return [answer(found), assistant(errand.say(rng, values, found), work)]


def followed(rng: Random) -> Talk:
    """Return a talk with two requests, one after the other."""
    first = some_errand(rng)
    second = first if rng.random() < 0.6 else rng.choice(ERRANDS)
    thinks = rng.random() < THINKS
    turns: list[Message] = []
    for errand in (first, second):
        question, values = errand.ask(rng)
        work = why(errand, f"{errand.name} fits.", thinks=thinks)
        turns += [user(question), call((errand.name, values), work=work)]
        turns += told(rng, errand, values, thinks=thinks)
    return Talk([*opening(rng), *turns[:-2]], offer(rng, *dict.fromkeys((first, second))), thinks)


def twice(rng: Random) -> Talk:
    """Return a talk with two calls in one message."""
    errands = [rng.choice(ERRANDS)] * 2 if rng.random() < 0.4 else rng.sample(ERRANDS, 2)
    (first, some), (second, others) = (errand.ask(rng) for errand in errands)
    wanted = list(zip(errands, (some, others), strict=True))
    question = fill(rng.choice(AND), {"first": ended(first), "second": second})
    turn = call(*((errand.name, values) for errand, values in wanted))
    after = both_told(rng, wanted) if rng.random() < 0.5 else []
    return Talk([*opening(rng), user(question), turn, *after], offer(rng, *dict.fromkeys(errands)))


def both_told(rng: Random, wanted: Sequence[tuple[Errand, Values]]) -> list[Message]:
    found = [(errand, values, errand.answer(rng, values)) for errand, values in wanted]
    said = " ".join(errand.say(rng, values, known) for errand, values, known in found)
    return [*(answer(known) for *_, known in found), assistant(said)]


def ended(text: str) -> str:
    return text if text[-1] in ".?!" else f"{text}."


def missing(rng: Random) -> Talk:
    """Return a talk in which a required value is asked for, mostly followed by its answer and the call."""
    errand = rng.choice([errand for errand in ERRANDS if errand.vague])
    way, meant = parted(rng.choice(errand.vague))
    values = draw(rng, errand.takes, slots_of(way)) | meant
    untold = [name for name, _, must in parameters(errand.takes) if must and name not in values]
    thinks = rng.random() < THINKS
    work = why(errand, f"{listed(untold)} {'is' if len(untold) == 1 else 'are'} missing.", thinks=thinks)
    turns = [user(fill(moody(rng, way), values)), assistant(errand.back, work)]
    if len(untold) == 1 and not thinks and rng.random() < 0.7:
        turns += filled_in(rng, errand, values, untold[0])
    return Talk([*opening(rng), *turns], offer(rng, errand), thinks)


def filled_in(rng: Random, errand: Errand, values: Values, name: str) -> list[Message]:
    more = draw(rng, errand.takes, [name])
    told = fill(rng.choice(("{value}", "{value}.", "{value}, please.", "{value} please")), {"value": more[name]})
    return [user(told), call((errand.name, errand.in_order(values | more)))]


def unsuited(rng: Random) -> Talk:
    """Return a talk in which no tool fits the request."""
    errand = rng.choice([errand for errand in ERRANDS if errand.name not in OWN])
    thinks = rng.random() < THINKS
    question, _ = errand.ask(rng)
    tools = offer_others(rng, errand.name)
    turn = assistant(NO_TOOL, why(errand, "No tool fits.", thinks=thinks))
    return Talk([*opening(rng), user(question), turn], tools, thinks)


def needless(rng: Random) -> Talk:
    """Return a talk whose request needs no tool and is answered as if there were none."""
    tools = offer_others(rng, *OWN)
    if rng.random() < 0.3:
        question, reply = rng.choice(list(SMALL_TALK.items()))
        return Talk([*opening(rng), user(question), assistant(reply)], tools)
    return Talk(other_talk(rng).messages, tools)


def other_talk(rng: Random) -> Talk:
    while True:
        talk = rng.choice((counting, sums, spelling))(rng)
        if isinstance(talk, Talk) and not talk.thinks:
            return talk


MAKERS: dict[Maker, int] = {called: 34, answered: 26, followed: 18, twice: 5, missing: 8, unsuited: 6, needless: 8}


def calls(rng: Random) -> Talk | str:
    return drawn(rng, MAKERS)(rng)
