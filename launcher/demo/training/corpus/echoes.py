"""Turns whose answers are copied from earlier words: repeat this, write it in capitals, remember my name."""

from collections.abc import Callable
from random import Random

from launcher.demo.training.corpus.conversation_turn import ConversationTurn
from launcher.demo.training.corpus.template_expansion import (
    capitalize_first_letter,
    expand_random_template,
    expand_template,
    invent_word,
    make_slot_forms,
)
from launcher.demo.training.corpus.words import (
    ANIMALS,
    BOY_NAMES,
    CITIES,
    COLOURS,
    FOODS,
    GIRL_NAMES,
    PLACE_PHRASES,
    THING_ADJECTIVES,
    THINGS,
)

SAY_REQUESTS = ("Say {x}[.|]", "Say \"{x}\"[.|]", "Repeat {x}[.|]", "Repeat after me: {x}", "Repeat \"{x}\"[.|]",
                "Please say {x}[.|]", "Say this: {x}", "Echo {x}", "Can you say {x}?", "Copy this: {x}",
                "Write \"{x}\"[.|]", "Say the words {x}[.|]", "Answer with {x}[.|]", "Print {x}", "Repeat this: {x}",
                "Just say {x}[.|]")
SAY_TWICE_REQUESTS = ("Say {x} twice[.|]", "Repeat {x} two times[.|]", "Write {x} twice[.|]",
                      "Say \"{x}\" two times[.|]")
SAY_THREE_TIMES_REQUESTS = ("Say {x} three times[.|]", "Repeat {x} three times[.|]", "Write \"{x}\" three times[.|]")
UPPER_CASE_REQUESTS = ("Make {x} upper case[.|]", "Write {x} in [capitals|capital letters|upper case][.|]",
                       "Shout {x}[!|]", "Put \"{x}\" in upper case[.|]", "Upper case: {x}",
                       "Write \"{x}\" in capital letters[.|]", "{x} in upper case", "Turn {x} into capitals[.|]")
LOWER_CASE_REQUESTS = ("Make {x} lower case[.|]", "Write {x} in [small letters|lower case][.|]",
                       "Put \"{x}\" in lower case[.|]", "Lower case: {x}", "Write \"{x}\" in small letters[.|]",
                       "{x} in lower case")
COPY_TASKS: tuple[tuple[tuple[str, ...], Callable[[str], str]],
                  ...] = ((SAY_REQUESTS, str), (SAY_REQUESTS, str), (SAY_REQUESTS, str),
                          (UPPER_CASE_REQUESTS, str.upper), (UPPER_CASE_REQUESTS, str.upper),
                          (SAY_TWICE_REQUESTS, lambda x: f"{x} {x}"),
                          (SAY_THREE_TIMES_REQUESTS, lambda x: f"{x} {x} {x}"),)

PAST_TENSE_VERBS = ("slept", "sat", "ran", "sang", "jumped", "walked", "danced", "laughed", "stood", "hid", "fell",
                    "played")

# Facts about the user: kind, statements, the reply, later questions about the fact, and their answer.
USER_FACT_TEMPLATES = (
    ("name", ("My name is {X}.", "I am {X}.", "I am called {X}.", "Hello, I am {X}.", "Hi! My name is {X}.",
              "Call me {X}.", "This is {X}."),
     "Hello, {X}! It is nice to meet you.",
     ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?", "Do you remember my name?"),
     "Your name is {X}."),
    ("city", ("I live in {X}.", "I come from {X}.", "My home is in {X}.", "I am from {X}."), "{X} is a fine place.",
     ("Where do I live?", "Where am I from?", "Where is my home?", "Do you know where I live?"), "You live in {X}."),
    ("colour", ("My favourite colour is {x}.", "I like {x} best.", "I love the colour {x}."),
     "{X} is a beautiful colour.",
     ("What is my favourite colour?", "Which colour do I like?", "What colour do I like best?"),
     "Your favourite colour is {x}."),
    ("food", ("I like to eat {x}.", "My favourite food is {x}.", "I love {x}.", "I like {x}."),
     "I have heard that {x} can be very good.",
     ("What do I like to eat?", "What is my favourite food?", "What do I like?"), "You like {x}."),
    ("pet", ("I have {a_x}.", "My pet is {a_x}.", "I have {a_x} at home.", "My best friend is {a_x}."),
     "{A_x} is a good friend.",
     ("What pet do I have?", "What animal do I have?", "Which animal lives with me?"), "You have {a_x}."),
    ("age", ("I am {x} years old.", "My age is {x}.", "I turned {x} today."), "{X} is a good age.",
     ("How old am I?", "What is my age?", "Do you know how old I am?"), "You are {x} years old."),
)


def make_random_phrase(rng: Random) -> str:
    """Return words that are hardly related, so that they must be copied and cannot be guessed."""
    kinds = (lambda: invent_word(rng), lambda: f"{rng.choice(THING_ADJECTIVES)} {rng.choice(THINGS)}",
             lambda: rng.choice(ANIMALS),
             lambda: f"the {rng.choice(ANIMALS)} {rng.choice(PAST_TENSE_VERBS)} {rng.choice(PLACE_PHRASES)}",
             lambda: rng.choice(GIRL_NAMES + BOY_NAMES),
             lambda: f"{rng.choice(COLOURS)} {rng.choice(ANIMALS)}", lambda: str(rng.randint(1, 999)),
             lambda: " ".join(rng.choice(THINGS + ANIMALS + THING_ADJECTIVES) for _ in range(rng.randint(2, 4))),
             lambda: rng.choice(("hello", "good morning", "I love soup", "banana", "yes", "no", "thank you",
                                 "hello world")))
    return rng.choice(kinds)()


def make_copy_turns(rng: Random) -> list[ConversationTurn]:
    request_templates, change = rng.choice(COPY_TASKS)
    words = make_random_phrase(rng)
    return [ConversationTurn(expand_random_template(request_templates, rng, x=words), change(words))]


def make_lower_case_turns(rng: Random) -> list[ConversationTurn]:
    words = make_random_phrase(rng)
    return [ConversationTurn(expand_random_template(LOWER_CASE_REQUESTS, rng, x=words.upper()), words.lower())]


def make_remembered_fact_turns(rng: Random) -> list[ConversationTurn]:
    """Return turns in which a user states one or two facts and later asks for them."""
    turns = [(ConversationTurn(expand_template(rng.choice(statements), rng, **words), answer.format_map(words)),
              ConversationTurn(rng.choice(questions), recalled_answer.format_map(words),
                               f"{capitalize_first_letter(words['a_x'] if kind == 'pet' else words['x'])}."))
             for kind, statements, answer, questions, recalled_answer in rng.sample(USER_FACT_TEMPLATES,
                                                                                    rng.choice((1, 1, 2)))
             for words in (make_slot_forms(x=choose_user_fact_value(kind, rng)),)]
    return [statement for statement, _ in turns] + [question for _, question in rng.sample(turns, len(turns))]


def choose_user_fact_value(kind: str, rng: Random) -> str:
    lists = {"name": GIRL_NAMES + BOY_NAMES, "city": CITIES, "colour": COLOURS, "food": FOODS, "pet": ANIMALS,
             "age": tuple(str(number) for number in range(3, 91))}
    is_invented = rng.random() < 0.2 and kind in ("name", "city")
    return capitalize_first_letter(invent_word(rng)) if is_invented else rng.choice(lists[kind])


def make_unknown_fact_turns(rng: Random) -> list[ConversationTurn]:
    """Return a question about a fact that the user has not stated."""
    kind, _, _, questions, _ = rng.choice(USER_FACT_TEMPLATES)
    return [ConversationTurn(rng.choice(questions), f"I do not know your {kind}. You have not told me.",
                             "I do not know.")]
