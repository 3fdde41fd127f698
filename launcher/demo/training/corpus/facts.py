"""Facts of the demo world as relations, with templates of questions and answers.

Tables only; x is the subject of a question and y the answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.demo.training.corpus.definitions_by_word import DEFINITIONS_BY_WORD
from launcher.demo.training.corpus.words import (
    ANIMAL_BABIES,
    ANIMAL_FOODS,
    ANIMAL_HOMES,
    ANIMAL_SOUNDS,
    ANIMALS,
    BODY_PARTS_BY_ACTIVITY,
    COUNTRY_CAPITALS,
    DAYS,
    IRREGULAR_PLURALS,
    LEG_COUNTS,
    MONTHS,
    OPPOSITES,
    PAST_TENSES,
    RHYMES,
    SEASONS,
    THING_CATEGORIES,
    THING_COLOURS,
    THING_USES,
    THINGS,
    TRADES_BY_ACTIVITY,
)

FOLLOW_UP_TEMPLATES = ("And {x}?", "What about {x}?", "And what about {x}?", "How about {x}?")
FOLLOW_UP_TEMPLATES_WITH_ARTICLE = ("And {a_x}?", "What about {a_x}?", "And what about {a_x}?", "How about {a_x}?")


@dataclass(frozen=True)
class FactRelation:
    """Relation of the demo world: its facts as pairs x and y, with templates of questions and answers."""

    facts: Mapping[str, str]
    questions: tuple[str, ...]
    answer_template: str
    yes_no_questions: tuple[str, ...] = ()  # yes-or-no questions, which name a y
    backwards_questions: tuple[str, ...] = ()  # questions for x, used only if y belongs to no other x
    brief_answer: str = "{Y}."
    brief_backwards_answer: str = "{X}."
    follow_ups: tuple[str, ...] = FOLLOW_UP_TEMPLATES
    # values that are true of other x too, and so never used as wrong ones
    widely_true_values: frozenset[str] = frozenset()

    def select_reversible_facts(self) -> dict[str, str]:
        """Return the facts that can be asked for backwards, since y belongs to no other x."""
        values = list(self.facts.values())
        return {x: y for x, y in self.facts.items() if values.count(y) == 1}


def make_regular_plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def make_cycle_facts(cycle: tuple[str, ...], step: int) -> dict[str, str]:
    return {x: cycle[(index + step) % len(cycle)] for index, x in enumerate(cycle)}


def make_symmetric_facts(pairs: Mapping[str, str]) -> dict[str, str]:
    return {y: x for x, y in pairs.items()} | dict(pairs)


def make_plural_facts(nouns: Iterable[str]) -> dict[str, str]:
    return {noun: make_regular_plural(noun) for noun in nouns if noun not in IRREGULAR_PLURALS} | IRREGULAR_PLURALS


CYCLE_RELATIONS = tuple(FactRelation(
    make_cycle_facts(ring, step),
    (f"[What|Which] {one} comes {word} {{x}}?", f"What comes {word} {{x}}?", f"What is the {one} {word} {{x}}?",
     f"Tell me the {one} {word} {{x}}.", f"Which {one} is {word} {{x}}?"),
    f"{{Y}} comes {word} {{x}}.",
    (f"Does {{y}} come {word} {{x}}?", f"Is {{y}} the {one} {word} {{x}}?"),
) for ring, one in ((DAYS, "day"), (MONTHS, "month"), (SEASONS, "season"))
                        for word, step in (("after", 1), ("before", -1)))

RELATIONS = (
    *CYCLE_RELATIONS,
    FactRelation(ANIMAL_SOUNDS,
                 ("What does {a_x} say?", "What [sound|noise] does {a_x} make?", "What does the {x} say?",
                  "How does {a_x} sound?", "Make the sound of {a_x}.", "What do you hear from {a_x}?"),
                 "{A_x} says {y}.", ("Does {a_x} say {y}?",),
                 ("[Which|What] animal says {y}?", "Who says {y}?"),
                 brief_backwards_answer="{A_x}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(ANIMAL_HOMES, ("Where does {a_x} live?", "Where is the home of {a_x}?", "What is the home of {a_x}?",
                                "Where can I find {a_x}?", "In what does {a_x} live?", "Where does the {x} live?"),
                 "{A_x} lives in {y}.", ("Does {a_x} live in {y}?",),
                 ("Who lives in {y}?", "[Which|What] animal lives in {y}?"),
                 brief_answer="In {y}.", brief_backwards_answer="{A_x}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(ANIMAL_FOODS, ("What does {a_x} eat?", "What does {a_x} like to eat?", "What is the food of {a_x}?",
                                "What do I feed {a_x}?", "What can {a_x} eat?"),
                 "{A_x} eats {y}.", ("Does {a_x} eat {y}?",),
                 ("[Which|What] animal eats {y}?", "Who eats {y}?"),
                 brief_backwards_answer="{A_x}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(ANIMAL_BABIES, ("What is a baby {x} called?", "What do you call a baby {x}?",
                                 "What is the young of {a_x} called?", "What is the name for a young {x}?",
                                 "How do you call the child of {a_x}?"),
                 "A baby {x} is called {a_y}.", ("Is a baby {x} called {a_y}?",),
                 ("What does {a_y} grow into?", "Whose baby is {a_y}?"),
                 brief_answer="{A_y}.", brief_backwards_answer="{A_x}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(LEG_COUNTS,
                 ("How many legs does {a_x} have?", "How many legs has {a_x}?", "Tell me how many legs {a_x} has.",
                  "What number of legs does {a_x} have?"),
                 "{A_x} has {y} legs.", ("Does {a_x} have {y} legs?",), follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(make_symmetric_facts(OPPOSITES),
                 ("What is the opposite of {x}?", "Tell me the opposite of {x}.", "Opposite of {x}?",
                  "What is not {x}?", "[Give me|Say|Name] the opposite of {x}.",
                  "What word means the opposite of {x}?"),
                 "The opposite of {x} is {y}.", ("Is {y} the opposite of {x}?",)),
    FactRelation(THING_COLOURS,
                 ("What [colour|color] is {x}?", "What is the [colour|color] of {x}?",
                  "Which [colour|color] has {x}?", "Tell me the [colour|color] of {x}.", "[Colour|Color] of {x}?"),
                 "{X} is {y}.", ("Is {x} {y}?", "Is the [colour|color] of {x} {y}?")),
    FactRelation(make_plural_facts(ANIMALS + THINGS),
                 ("What is the plural of {x}?", "Plural of {x}?", "One {x}, two what?",
                  "How do you say {x} in plural?", "I have one {x}, you have two what?",
                  "Tell me the plural of {x}."),
                 "The plural of {x} is {y}.", ("Is {y} the plural of {x}?",)),
    FactRelation(PAST_TENSES,
                 ("What is the past tense of {x}?", "What is the past of {x}?", "Past tense of {x}?",
                  "Put {x} in the past.", "Today I {x}. What did I do yesterday?", "Tell me the past tense of {x}."),
                 "The past tense of {x} is {y}.", ("Is {y} the past tense of {x}?",)),
    FactRelation(COUNTRY_CAPITALS, ("What is the capital of {x}?", "Capital of {x}?", "Tell me the capital of {x}.",
                                    "Which city is the capital of {x}?", "Name the capital of {x}.",
                                    "Do you know the capital of {x}?", "What is the capital city of {x}?"),
                 "The capital of {x} is {y}.", ("Is {y} the capital of {x}?",),
                 ("[Which|What] country has the capital {y}?", "{Y} is the capital of which country?")),
    FactRelation(TRADES_BY_ACTIVITY, ("Who {x}?", "What do you call someone who {x}?", "Which person {x}?",
                                      "What is the work of someone who {x}?"),
                 "{A_y} {x}.", ("Is it {a_y} who {x}?",),
                 ("What does {a_y} do?", "What is the work of {a_y}?", "What can {a_y} do?"),
                 brief_answer="{A_y}.", brief_backwards_answer="{A_y} {x}.", follow_ups=("And who {x}?", "Who {x}?")),
    FactRelation(THING_CATEGORIES, ("What kind of thing is {a_x}?", "What sort of thing is {a_x}?",
                                    "What group does {a_x} belong to?"),
                 "{A_x} is {a_y}.", ("Is {a_x} {a_y}?",), brief_answer="{A_y}.",
                 follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE,
                 widely_true_values=frozenset({"animal"})),
    FactRelation(THING_USES, ("What is {a_x} for?", "What is {a_x} good for?", "What do I need {a_x} for?",
                              "What do you do with {a_x}?", "Why do people have {a_x}?", "What is the use of {a_x}?"),
                 "{A_x} is for {y}.", ("Is {a_x} for {y}?",),
                 ("What is for {y}?", "What do I need for {y}?"),
                 brief_answer="For {y}.", brief_backwards_answer="{A_x}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(DEFINITIONS_BY_WORD,
                 ("What is {a_x}?", "What is {a_x}?", "What's {a_x}?", "Tell me what {a_x} is.",
                  "What does {x} mean?", "Define {x}.", "Explain what {a_x} is.", "Do you know what {a_x} is?",
                  "Tell me about {a_x}.", "What do you know about {a_x}?", "Can you explain what {a_x} is?",
                  "What does the word {x} mean?", "What exactly is {a_x}?"),
                 "{A_x} is {y}.", ("Is {a_x} {y}?",), brief_answer="{Y}.", follow_ups=FOLLOW_UP_TEMPLATES_WITH_ARTICLE),
    FactRelation(BODY_PARTS_BY_ACTIVITY, ("What do you {x} with?", "What do I need to {x}?", "With what do we {x}?",
                                          "What do people {x} with?"),
                 "You {x} with your {y}.", ("Do you {x} with your {y}?",),
                 follow_ups=("And what do you {x} with?", "What do you {x} with?")),
    FactRelation({x: y for words in RHYMES for x, y in make_cycle_facts(words, 1).items()},
                 ("What rhymes with {x}?", "Give me a rhyme for {x}.", "Find a word that rhymes with {x}.",
                  "Tell me a rhyme for {x}.", "Which word rhymes with {x}?", "Rhyme for {x}?",
                  "Do you know a rhyme for {x}?"),
                 "{X} rhymes with {y}."),)
