"""Talks about arithmetic with small whole numbers: the four operations, halves and doubles.

Requests use signs, words or little stories. A fifth of the answers begin with a short calculation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from launcher.demo.training.corpus.asking import chat, drawn, fill, great, moody, put, thought, typed
from launcher.demo.training.corpus.counting import in_words, row
from launcher.demo.training.talk import Maker, Talk

THINKS = 0.2  # share of talks with reasoning
PEOPLE = ("Tom", "Mia", "Ben", "Anna", "Sam", "Lily", "Max", "Emma", "Leo", "Nora", "Jack", "Eva", "Paul", "Lucy")
THINGS = (
    "apples", "pears", "eggs", "books", "balls", "coins", "hats", "stones", "shells", "cups", "cakes", "nuts", "stars",
    "pens", "kites", "birds", "boxes", "flowers", "carrots", "buttons")

ASKED = (
    "What is {sum}?", "{sum}?", "{sum} =", "How much is {sum}?", "Tell me what {sum} is", "Work out {sum}",
    "What does {sum} make?", "Please tell me: {sum}?", "Find {sum}", "What do you get for {sum}?",
    "Do you know what {sum} is?", "Solve {sum}", "Can you tell me {sum}?", "I need to know {sum}.", "Calculate {sum}",
    "Sum: {sum}?", "{sum} is what?", "What is the answer to {sum}?", "What's {sum}?", "{sum}.", "{sum} equals?",
    "Give me the answer: {sum}", "Do this sum: {sum}", "What is {sum} please?")
RIGHT = (
    "Is it true that {sum} = {c}?", "Is {sum} = {c}?", "Is {sum} equal to {c}?", "{sum} = {c}, right?",
    "Does {sum} make {c}?", "Check this: {sum} = {c}", "Is this right: {sum} = {c}?", "Am I right that {sum} = {c}?")
MISSING = (
    "What plus {a} is {c}?", "Which number plus {a} is {c}?", "How much must I add to {a} to get {c}?",
    "What do I add to {a} to get {c}?", "{a} plus what is {c}?", "{a} + what = {c}?")
DOUBLE = (
    "What is the double of {a}?", "Double {a}", "What is twice {a}?", "What is two times {a}?", "What is double {a}?",
    "Tell me the double of {a}", "How much is twice {a}?")
HALF = (
    "What is half of {a}?", "Halve {a}", "What is the half of {a}?", "How much is half of {a}?", "Tell me half of {a}",
    "Cut {a} in half", "What is one half of {a}?")
AND_THEN = {
    "+": ("And plus {b}?", "Now add {b}.", "Plus {b}?", "And {b} more?", "Then plus {b}?", "Add {b} to that"),
    "-": ("And minus {b}?", "Now take away {b}.", "Minus {b}?", "And {b} less?", "Then minus {b}?"),
}
# Word problems with the templates of their answers.
GAIN = {
    "{who} has {a} {things} and gets {b} more. How many {things} does {who} have?": "{who} has {some}.",
    "{who} has {a} {things}. {friend} brings {b} more. How many {things} does {who} have now?": "{who} has {some}.",
    "{who} found {a} {things} and then {b} more. How many {things} does {who} have?": "{who} has {some}.",
    "There are {a} {things} in a box. {who} puts in {b} more. How many {things} are there?": "There {are}.",
    "{who} has {a} {things}. {friend} has {b} {things}. How many {things} do they have together?": "They have {some}.",
    "{who} buys {a} {things} and then {b} more. How many {things} does {who} buy?": "{who} buys {some}.",
    "On the table are {a} {things}. {who} brings {b} more. How many {things} are there now?": "There {are} now.",
    "If {who} has {a} {things} and gets {b} more, how many {things} does {who} have?": "{who} has {some}.",
}
LOSS = {
    "{who} has {a} {things} and gives away {b}. How many {things} are left?": "There {are} left.",
    "{who} has {a} {things} and loses {b}. How many {things} does {who} have now?": "{who} has {some}.",
    "There are {a} {things} on the table. {who} takes {b}. How many {things} are left?": "There {are} left.",
    "{who} had {a} {things}. {who} gave {b} to {friend}. How many {things} are left?": "There {are} left.",
    "In a box are {a} {things}. {who} takes out {b}. How many {things} are in it now?": "There {are} in it.",
    "If {who} has {a} {things} and sells {b}, how many {things} are left?": "There {are} left.",
    "{a} {things} are in a bag. {b} fall out. How many {things} are left?": "There {are} left.",
}
GROUPS = {
    "{who} has {a} bags with {b} {things} each. How many {things} does {who} have?": "{who} has {some}.",
    "There are {a} boxes with {b} {things} in each. How many {things} are there?": "There {are}.",
    "{a} children have {b} {things} each. How many {things} do they have?": "They have {some}.",
    "{who} buys {b} {things} every day for {a} days. How many {things} does {who} buy?": "{who} buys {some}.",
}


@dataclass(frozen=True, slots=True)
class Sign:
    written: str
    spoken: tuple[str, ...]
    work: Callable[[int, int], int]


PLUS = Sign("+", ("plus", "plus", "and"), int.__add__)
MINUS = Sign("-", ("minus", "minus", "take away"), int.__sub__)
TIMES = Sign("*", ("times", "times", "multiplied by"), int.__mul__)
SHARED = Sign("/", ("divided by", "divided by", "shared by"), int.__floordiv__)


@dataclass(frozen=True, slots=True)
class Sum:
    a: int
    sign: Sign
    b: int

    @property
    def result(self) -> int:
        return self.sign.work(self.a, self.b)

    def __str__(self) -> str:
        return f"{self.a} {self.sign.written} {self.b}"

    @property
    def solved(self) -> str:
        return f"{self} = {self.result}."


def added(rng: Random) -> Sum:
    if rng.random() < 0.65:
        return Sum(rng.randint(0, 20), PLUS, rng.randint(0, 20))
    a = rng.randint(1, 95)
    return Sum(a, PLUS, rng.randint(1, 99 - a))


def taken(rng: Random) -> Sum:
    a = rng.randint(1, 20) if rng.random() < 0.65 else rng.randint(10, 99)
    return Sum(a, MINUS, rng.randint(0, a))


def multiplied(rng: Random) -> Sum:
    return Sum(rng.randint(1, 10), TIMES, rng.randint(1, 10))


def shared(rng: Random) -> Sum:
    by = rng.randint(1, 10)
    return Sum(by * rng.randint(1, 10), SHARED, by)


def some_sum(rng: Random) -> Sum:
    return drawn(rng, {added: 5, taken: 4, multiplied: 3, shared: 1})(rng)


def working(item: Sum) -> str:
    """Return the steps of the calculation as a child would do it."""
    return {"+": step_up, "-": step_down, "*": step_by, "/": step_back}[item.sign.written](item.a, item.b)


def step_up(a: int, b: int) -> str:
    if 0 < b < 6:
        return f"I go {b} up from {a}: {row(range(a + 1, a + b + 1))}."
    if min(a, b) < 10:
        return f"{max(a, b)} and {min(a, b)} more is {a + b}."
    tens, ones = a - a % 10 + b - b % 10, a % 10 + b % 10
    parts = f"Tens: {a - a % 10} + {b - b % 10} = {tens}. Ones: {a % 10} + {b % 10} = {ones}."
    return f"{parts} {tens} + {ones} = {a + b}."


def step_down(a: int, b: int) -> str:
    if 0 < b < 6:
        return f"I go {b} down from {a}: {row(range(a - 1, a - b - 1, -1))}."
    if b < 10 or b % 10 == 0:
        return f"{b} + {a - b} = {a}."
    left = a - b // 10 * 10
    return f"{a} - {b // 10 * 10} = {left}. {left} - {b % 10} = {a - b}."


def step_by(a: int, b: int) -> str:
    return f"I count by {b}: {row(range(b, a * b + 1, b))}."


def step_back(a: int, b: int) -> str:
    return f"{b} * {a // b} = {a}."


def answered(rng: Random, question: str, work: str, answer: str) -> Talk:
    if rng.random() < THINKS:
        return chat(rng, question, thought(work, answer), thinks=True)
    return chat(rng, question, answer)


def signed(rng: Random) -> Talk:
    item = some_sum(rng)
    said = str(item) if rng.random() < 0.8 else str(item).replace(" ", "")
    return answered(rng, put(rng, ASKED, sum=said), working(item), item.solved)


def spoken(rng: Random) -> Talk:
    item = some_sum(rng)
    said = f"{item.a} {rng.choice(item.sign.spoken)} {item.b}"
    answer = f"{item.a} {item.sign.spoken[0]} {item.b} is {item.result}."
    return answered(rng, put(rng, ASKED, sum=said), working(item), answer)


def all_in_words(rng: Random) -> Talk:
    sign = rng.choice((PLUS, MINUS, TIMES))
    b, a = sorted((rng.randint(1, 10), rng.randint(1, 10)))
    item = Sum(a, sign, b)
    said = f"{in_words(a)} {sign.spoken[0]} {in_words(b)}"
    return answered(rng, put(rng, ASKED, sum=said), working(item), f"{great(said)} is {in_words(item.result)}.")


def story(rng: Random, ways: Mapping[str, str], item: Sum, told: str) -> Talk:
    who, friend = rng.sample(PEOPLE, 2)
    things = rng.choice(THINGS)
    some = f"1 {one_of(things)}" if item.result == 1 else f"{item.result} {things}"
    slots: dict[str, object] = {"who": who, "friend": friend, "things": things, "a": item.a, "b": item.b, "some": some,
             "are": f"is {some}" if item.result == 1 else f"are {some}"}
    way = rng.choice(list(ways))
    question = fill(moody(rng, way), typed(rng, slots))
    return answered(rng, question, told, f"{item.solved} {fill(ways[way], slots)}")


def one_of(things: str) -> str:
    return "box" if things == "boxes" else things[:-1]


def gain(rng: Random) -> Talk:
    return story(rng, GAIN, Sum(rng.randint(2, 12), PLUS, rng.randint(2, 9)), "More means plus.")


def loss(rng: Random) -> Talk:
    a = rng.randint(3, 20)
    return story(rng, LOSS, Sum(a, MINUS, rng.randint(2, a - 1)), "Less means minus.")


def groups(rng: Random) -> Talk:
    return story(rng, GROUPS, Sum(rng.randint(2, 6), TIMES, rng.randint(2, 6)), "So many each means times.")


def doubled(rng: Random) -> Talk:
    a = rng.choice((rng.randint(1, 12), rng.randint(1, 49)))
    return answered(rng, put(rng, DOUBLE, a=a), f"{a} + {a} = {2 * a}.", f"The double of {a} is {2 * a}.")


def halved(rng: Random) -> Talk:
    half = rng.choice((rng.randint(1, 12), rng.randint(1, 49)))
    return answered(rng, put(rng, HALF, a=2 * half), f"{half} + {half} = {2 * half}.", f"Half of {2 * half} is {half}.")


def checked(rng: Random) -> Talk:
    item = some_sum(rng)
    told = item.result if rng.random() < 0.5 else max(0, item.result + rng.choice((-2, -1, 1, 2)))
    answer = f"{'Yes' if told == item.result else 'No'}. {item.solved}"
    return answered(rng, put(rng, RIGHT, sum=item, c=told), working(item), answer)


def missing(rng: Random) -> Talk:
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    return answered(rng, put(rng, MISSING, a=a, c=a + b), f"{a + b} - {a} = {b}.", f"{a} + {b} = {a + b}.")


def three(rng: Random) -> Talk:
    a, b, c = (rng.randint(1, 12) for _ in range(3))
    first = Sum(a, PLUS, b)
    second = Sum(first.result, PLUS, c)
    return chat(rng, put(rng, ASKED, sum=f"{first} + {c}"), f"{first.solved} {second.solved}")


def chain(rng: Random) -> Talk:
    """Return a talk in which each turn continues with the previous result."""
    item = Sum(rng.randint(1, 15), PLUS, rng.randint(1, 10))
    turns = [put(rng, ASKED, sum=item), item.solved]
    for _ in range(rng.randint(1, 2)):
        sign = PLUS if item.result < 6 or rng.random() < 0.6 else MINUS
        item = Sum(item.result, sign, rng.randint(1, 5))
        turns += [put(rng, AND_THEN[sign.written], b=item.b), item.solved]
    return chat(rng, *turns)


def plain(rng: Random) -> str:
    """Return plain text without a question."""
    if rng.random() < 0.5:
        b = rng.randint(1, 10)
        return " ".join(Sum(a, TIMES, b).solved for a in range(1, 11))
    return " ".join(some_sum(rng).solved for _ in range(rng.randint(3, 8)))


MAKERS: dict[Maker, int] = {
    signed: 30, spoken: 20, all_in_words: 6, gain: 8, loss: 7, groups: 4, doubled: 4, halved: 4, checked: 4, missing: 3,
    three: 3, chain: 7, plain: 3,
}


def sums(rng: Random) -> Talk | str:
    return drawn(rng, MAKERS)(rng)
