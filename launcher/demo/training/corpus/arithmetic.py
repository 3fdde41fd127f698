"""Conversations about arithmetic with small whole numbers: the four operations, halves and doubles.

Requests use signs, words or little stories. A fifth of the answers begin with a short calculation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker
from launcher.demo.training.corpus.counting import join_numbers, write_number_in_words
from launcher.demo.training.corpus.request_variations import (
    capitalize_first_letter,
    choose_weighted,
    fill_random_template,
    fill_slots,
    make_conversation,
    prepend_reasoning,
    randomly_lowercase_values,
    vary_template,
)

REASONING_SHARE = 0.2  # share of talks with reasoning
PEOPLE = ("Tom", "Mia", "Ben", "Anna", "Sam", "Lily", "Max", "Emma", "Leo", "Nora", "Jack", "Eva", "Paul", "Lucy")
THINGS = (
    "apples", "pears", "eggs", "books", "balls", "coins", "hats", "stones", "shells", "cups", "cakes", "nuts", "stars",
    "pens", "kites", "birds", "boxes", "flowers", "carrots", "buttons")

SUM_QUESTIONS = (
    "What is {sum}?", "{sum}?", "{sum} =", "How much is {sum}?", "Tell me what {sum} is", "Work out {sum}",
    "What does {sum} make?", "Please tell me: {sum}?", "Find {sum}", "What do you get for {sum}?",
    "Do you know what {sum} is?", "Solve {sum}", "Can you tell me {sum}?", "I need to know {sum}.", "Calculate {sum}",
    "Sum: {sum}?", "{sum} is what?", "What is the answer to {sum}?", "What's {sum}?", "{sum}.", "{sum} equals?",
    "Give me the answer: {sum}", "Do this sum: {sum}", "What is {sum} please?")
CHECK_QUESTIONS = (
    "Is it true that {sum} = {c}?", "Is {sum} = {c}?", "Is {sum} equal to {c}?", "{sum} = {c}, right?",
    "Does {sum} make {c}?", "Check this: {sum} = {c}", "Is this right: {sum} = {c}?", "Am I right that {sum} = {c}?")
MISSING_SUMMAND_QUESTIONS = (
    "What plus {a} is {c}?", "Which number plus {a} is {c}?", "How much must I add to {a} to get {c}?",
    "What do I add to {a} to get {c}?", "{a} plus what is {c}?", "{a} + what = {c}?")
DOUBLE_QUESTIONS = (
    "What is the double of {a}?", "Double {a}", "What is twice {a}?", "What is two times {a}?", "What is double {a}?",
    "Tell me the double of {a}", "How much is twice {a}?")
HALF_QUESTIONS = (
    "What is half of {a}?", "Halve {a}", "What is the half of {a}?", "How much is half of {a}?", "Tell me half of {a}",
    "Cut {a} in half", "What is one half of {a}?")
FOLLOW_UP_QUESTIONS = {
    "+": ("And plus {b}?", "Now add {b}.", "Plus {b}?", "And {b} more?", "Then plus {b}?", "Add {b} to that"),
    "-": ("And minus {b}?", "Now take away {b}.", "Minus {b}?", "And {b} less?", "Then minus {b}?"),
}
# Word problems with the templates of their answers.
ADDITION_STORIES = {
    "{who} has {a} {things} and gets {b} more. How many {things} does {who} have?": "{who} has {some}.",
    "{who} has {a} {things}. {friend} brings {b} more. How many {things} does {who} have now?": "{who} has {some}.",
    "{who} found {a} {things} and then {b} more. How many {things} does {who} have?": "{who} has {some}.",
    "There are {a} {things} in a box. {who} puts in {b} more. How many {things} are there?": "There {are}.",
    "{who} has {a} {things}. {friend} has {b} {things}. How many {things} do they have together?": "They have {some}.",
    "{who} buys {a} {things} and then {b} more. How many {things} does {who} buy?": "{who} buys {some}.",
    "On the table are {a} {things}. {who} brings {b} more. How many {things} are there now?": "There {are} now.",
    "If {who} has {a} {things} and gets {b} more, how many {things} does {who} have?": "{who} has {some}.",
}
SUBTRACTION_STORIES = {
    "{who} has {a} {things} and gives away {b}. How many {things} are left?": "There {are} left.",
    "{who} has {a} {things} and loses {b}. How many {things} does {who} have now?": "{who} has {some}.",
    "There are {a} {things} on the table. {who} takes {b}. How many {things} are left?": "There {are} left.",
    "{who} had {a} {things}. {who} gave {b} to {friend}. How many {things} are left?": "There {are} left.",
    "In a box are {a} {things}. {who} takes out {b}. How many {things} are in it now?": "There {are} in it.",
    "If {who} has {a} {things} and sells {b}, how many {things} are left?": "There {are} left.",
    "{a} {things} are in a bag. {b} fall out. How many {things} are left?": "There {are} left.",
}
MULTIPLICATION_STORIES = {
    "{who} has {a} bags with {b} {things} each. How many {things} does {who} have?": "{who} has {some}.",
    "There are {a} boxes with {b} {things} in each. How many {things} are there?": "There {are}.",
    "{a} children have {b} {things} each. How many {things} do they have?": "They have {some}.",
    "{who} buys {b} {things} every day for {a} days. How many {things} does {who} buy?": "{who} buys {some}.",
}


@dataclass(frozen=True, slots=True)
class ArithmeticOperator:
    """One of the four operators, with its symbol and spoken forms."""

    symbol: str
    spoken_forms: tuple[str, ...]
    compute: Callable[[int, int], int]


PLUS = ArithmeticOperator("+", ("plus", "plus", "and"), int.__add__)
MINUS = ArithmeticOperator("-", ("minus", "minus", "take away"), int.__sub__)
TIMES = ArithmeticOperator("*", ("times", "times", "multiplied by"), int.__mul__)
DIVIDED_BY = ArithmeticOperator("/", ("divided by", "divided by", "shared by"), int.__floordiv__)


@dataclass(frozen=True, slots=True)
class ArithmeticTask:
    """Two operands and an operator."""

    left_operand: int
    sign: ArithmeticOperator
    right_operand: int

    @property
    def result(self) -> int:
        return self.sign.compute(self.left_operand, self.right_operand)

    def __str__(self) -> str:
        return f"{self.left_operand} {self.sign.symbol} {self.right_operand}"

    @property
    def solved_equation(self) -> str:
        return f"{self} = {self.result}."


def draw_addition(rng: Random) -> ArithmeticTask:
    if rng.random() < 0.65:
        return ArithmeticTask(rng.randint(0, 20), PLUS, rng.randint(0, 20))
    a = rng.randint(1, 95)
    return ArithmeticTask(a, PLUS, rng.randint(1, 99 - a))


def draw_subtraction(rng: Random) -> ArithmeticTask:
    a = rng.randint(1, 20) if rng.random() < 0.65 else rng.randint(10, 99)
    return ArithmeticTask(a, MINUS, rng.randint(0, a))


def draw_multiplication(rng: Random) -> ArithmeticTask:
    return ArithmeticTask(rng.randint(1, 10), TIMES, rng.randint(1, 10))


def draw_division(rng: Random) -> ArithmeticTask:
    by = rng.randint(1, 10)
    return ArithmeticTask(by * rng.randint(1, 10), DIVIDED_BY, by)


def draw_arithmetic_task(rng: Random) -> ArithmeticTask:
    return choose_weighted(rng, {draw_addition: 5, draw_subtraction: 4, draw_multiplication: 3, draw_division: 1})(rng)


def explain_calculation(item: ArithmeticTask) -> str:
    """Return the steps of the calculation as a child would do it."""
    return {"+": explain_addition, "-": explain_subtraction, "*": explain_multiplication,
            "/": explain_division}[item.sign.symbol](item.left_operand, item.right_operand)


def explain_addition(a: int, b: int) -> str:
    if 0 < b < 6:
        return f"I go {b} up from {a}: {join_numbers(range(a + 1, a + b + 1))}."
    if min(a, b) < 10:
        return f"{max(a, b)} and {min(a, b)} more is {a + b}."
    tens, ones = a - a % 10 + b - b % 10, a % 10 + b % 10
    parts = f"Tens: {a - a % 10} + {b - b % 10} = {tens}. Ones: {a % 10} + {b % 10} = {ones}."
    return f"{parts} {tens} + {ones} = {a + b}."


def explain_subtraction(a: int, b: int) -> str:
    if 0 < b < 6:
        return f"I go {b} down from {a}: {join_numbers(range(a - 1, a - b - 1, -1))}."
    if b < 10 or b % 10 == 0:
        return f"{b} + {a - b} = {a}."
    left = a - b // 10 * 10
    return f"{a} - {b // 10 * 10} = {left}. {left} - {b % 10} = {a - b}."


def explain_multiplication(a: int, b: int) -> str:
    return f"I count by {b}: {join_numbers(range(b, a * b + 1, b))}."


def explain_division(a: int, b: int) -> str:
    return f"{b} * {a // b} = {a}."


def make_optionally_reasoned_conversation(rng: Random, question: str, reasoning: str, answer: str) -> Conversation:
    if rng.random() < REASONING_SHARE:
        return make_conversation(rng, question, prepend_reasoning(reasoning, answer), has_reasoning=True)
    return make_conversation(rng, question, answer)


def make_arithmetic_with_symbols(rng: Random) -> Conversation:
    item = draw_arithmetic_task(rng)
    expression = str(item) if rng.random() < 0.8 else str(item).replace(" ", "")
    return make_optionally_reasoned_conversation(rng, fill_random_template(rng, SUM_QUESTIONS, sum=expression),
                                                 explain_calculation(item), item.solved_equation)


def make_arithmetic_with_spoken_sign(rng: Random) -> Conversation:
    item = draw_arithmetic_task(rng)
    expression = f"{item.left_operand} {rng.choice(item.sign.spoken_forms)} {item.right_operand}"
    answer = f"{item.left_operand} {item.sign.spoken_forms[0]} {item.right_operand} is {item.result}."
    return make_optionally_reasoned_conversation(rng, fill_random_template(rng, SUM_QUESTIONS, sum=expression),
                                                 explain_calculation(item), answer)


def make_arithmetic_in_words(rng: Random) -> Conversation:
    sign = rng.choice((PLUS, MINUS, TIMES))
    b, a = sorted((rng.randint(1, 10), rng.randint(1, 10)))
    item = ArithmeticTask(a, sign, b)
    expression = f"{write_number_in_words(a)} {sign.spoken_forms[0]} {write_number_in_words(b)}"
    return make_optionally_reasoned_conversation(
        rng, fill_random_template(rng, SUM_QUESTIONS, sum=expression), explain_calculation(item),
        f"{capitalize_first_letter(expression)} is {write_number_in_words(item.result)}.")


def make_word_problem(rng: Random, answers_by_question: Mapping[str, str], item: ArithmeticTask,
                      reasoning: str) -> Conversation:
    person, friend = rng.sample(PEOPLE, 2)
    things = rng.choice(THINGS)
    result_text = f"1 {make_singular(things)}" if item.result == 1 else f"{item.result} {things}"
    slots: dict[str, object] = {"who": person, "friend": friend, "things": things, "a": item.left_operand,
                                "b": item.right_operand, "some": result_text,
                                "are": f"is {result_text}" if item.result == 1 else f"are {result_text}"}
    question_template = rng.choice(list(answers_by_question))
    question = fill_slots(vary_template(rng, question_template), randomly_lowercase_values(rng, slots))
    return make_optionally_reasoned_conversation(
        rng, question, reasoning, f"{item.solved_equation} {fill_slots(answers_by_question[question_template], slots)}")


def make_singular(plural: str) -> str:
    return "box" if plural == "boxes" else plural[:-1]


def make_addition_problem(rng: Random) -> Conversation:
    return make_word_problem(rng, ADDITION_STORIES, ArithmeticTask(rng.randint(2, 12), PLUS, rng.randint(2, 9)),
                             "More means plus.")


def make_subtraction_problem(rng: Random) -> Conversation:
    a = rng.randint(3, 20)
    return make_word_problem(rng, SUBTRACTION_STORIES, ArithmeticTask(a, MINUS, rng.randint(2, a - 1)),
                             "Less means minus.")


def make_multiplication_problem(rng: Random) -> Conversation:
    return make_word_problem(rng, MULTIPLICATION_STORIES, ArithmeticTask(rng.randint(2, 6), TIMES, rng.randint(2, 6)),
                             "So many each means times.")


def make_doubling_question(rng: Random) -> Conversation:
    a = rng.choice((rng.randint(1, 12), rng.randint(1, 49)))
    return make_optionally_reasoned_conversation(rng, fill_random_template(rng, DOUBLE_QUESTIONS, a=a),
                                                 f"{a} + {a} = {2 * a}.", f"The double of {a} is {2 * a}.")


def make_halving_question(rng: Random) -> Conversation:
    half = rng.choice((rng.randint(1, 12), rng.randint(1, 49)))
    return make_optionally_reasoned_conversation(rng, fill_random_template(rng, HALF_QUESTIONS, a=2 * half),
                                                 f"{half} + {half} = {2 * half}.", f"Half of {2 * half} is {half}.")


def make_equation_check(rng: Random) -> Conversation:
    item = draw_arithmetic_task(rng)
    claimed_result = item.result if rng.random() < 0.5 else max(0, item.result + rng.choice((-2, -1, 1, 2)))
    answer = f"{'Yes' if claimed_result == item.result else 'No'}. {item.solved_equation}"
    return make_optionally_reasoned_conversation(rng,
                                                 fill_random_template(rng, CHECK_QUESTIONS, sum=item, c=claimed_result),
                                                 explain_calculation(item), answer)


def make_missing_summand_question(rng: Random) -> Conversation:
    a, b = rng.randint(1, 12), rng.randint(1, 12)
    return make_optionally_reasoned_conversation(rng,
                                                 fill_random_template(rng, MISSING_SUMMAND_QUESTIONS, a=a, c=a + b),
                                                 f"{a + b} - {a} = {b}.", f"{a} + {b} = {a + b}.")


def make_three_number_sum(rng: Random) -> Conversation:
    a, b, c = (rng.randint(1, 12) for _ in range(3))
    first = ArithmeticTask(a, PLUS, b)
    second = ArithmeticTask(first.result, PLUS, c)
    return make_conversation(rng, fill_random_template(rng, SUM_QUESTIONS, sum=f"{first} + {c}"),
                             f"{first.solved_equation} {second.solved_equation}")


def make_chained_sums(rng: Random) -> Conversation:
    """Return a talk in which each turn continues with the previous result."""
    item = ArithmeticTask(rng.randint(1, 15), PLUS, rng.randint(1, 10))
    turns = [fill_random_template(rng, SUM_QUESTIONS, sum=item), item.solved_equation]
    for _ in range(rng.randint(1, 2)):
        sign = PLUS if item.result < 6 or rng.random() < 0.6 else MINUS
        item = ArithmeticTask(item.result, sign, rng.randint(1, 5))
        turns += [fill_random_template(rng, FOLLOW_UP_QUESTIONS[sign.symbol], b=item.right_operand),
                  item.solved_equation]
    return make_conversation(rng, *turns)


def make_solved_equations_text(rng: Random) -> str:
    """Return plain text without a question."""
    if rng.random() < 0.5:
        b = rng.randint(1, 10)
        return " ".join(ArithmeticTask(a, TIMES, b).solved_equation for a in range(1, 11))
    return " ".join(draw_arithmetic_task(rng).solved_equation for _ in range(rng.randint(3, 8)))


WEIGHTED_MAKERS: dict[DocumentMaker,
                      int] = {make_arithmetic_with_symbols: 30, make_arithmetic_with_spoken_sign: 20,
                              make_arithmetic_in_words: 6,
                              make_addition_problem: 8, make_subtraction_problem: 7, make_multiplication_problem: 4,
                              make_doubling_question: 4, make_halving_question: 4, make_equation_check: 4,
                              make_missing_summand_question: 3, make_three_number_sum: 3, make_chained_sums: 7,
                              make_solved_equations_text: 3,}


def make_arithmetic_document(rng: Random) -> Conversation | str:
    return choose_weighted(rng, WEIGHTED_MAKERS)(rng)
