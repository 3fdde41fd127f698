"""Questions about facts of the demo world: forwards, backwards, for yes or no, and continued with "And a cow?"."""

from random import Random

from launcher.demo.training.corpus.facts import RELATIONS, Relation
from launcher.demo.training.corpus.grammar import expand, forms, invented, one_of
from launcher.demo.training.corpus.turns import Turn
from launcher.demo.training.corpus.words import BY_SIZE, DAYS, MONTHS, SEASONS

SIZE_ASKS = ("[Which|What] is {more}, {a_x} or {a_y}?", "What is {more}: {a_x} or {a_y}?",
             "Who is {more}, {a_x} or {a_y}?", "{A_x} or {a_y}, which is {more}?",
             "Tell me what is {more}, {a_x} or {a_y}.")
SIZE_DOUBTS = ("Is {a_x} {more} than {a_y}?",)
LISTS = (
    ("[Name|Say|List|Tell me|What are] the days of the week[.|!|?]", DAYS, "The days of the week are {}."),
    ("[Name|Say|List|Tell me|What are] the months of the year[.|!|?]", MONTHS, "The months of the year are {}."),
    ("[Name|Say|List|Tell me|What are] the [four |]seasons[.|!|?]", SEASONS, "The four seasons are {}."),
)
UNHEARD = (
    ("What does {a_x} say?", "I do not know what {a_x} says."), ("Where does {a_x} live?",
                                                                 "I do not know where {a_x} lives."),
    ("What does {a_x} eat?", "I do not know what {a_x} eats."), ("What is {a_x}?", "I do not know what {a_x} is."),
    ("What is the capital of {X}?", "I do not know the capital of {X}."), ("Who is {X}?", "I do not know who {X} is."),
    ("What does {x} mean?", "I do not know what {x} means."), ("What colour is {a_x}?",
                                                               "I do not know what colour {a_x} is."),
)
WEIGHTS = [len(relation.facts) ** 0.5 for relation in RELATIONS]


def known(rng: Random) -> list[Turn]:
    """Return one to three questions about one relation; those after the first may be short."""
    relation = rng.choices(RELATIONS, WEIGHTS)[0]
    facts = rng.sample(sorted(relation.facts.items()), 3)
    first = rng.choice((straight, straight, doubted, backwards))(relation, *facts[0], rng)
    return [first, *(again(relation, x, y, rng) for x, y in facts[1:][:rng.choice((0, 0, 0, 1, 2))])]


def straight(relation: Relation, x: str, y: str, rng: Random) -> Turn:
    return answered(one_of(relation.asks, rng, **forms(x=x, y=y)), relation, x, y)


def again(relation: Relation, x: str, y: str, rng: Random) -> Turn:
    """Return a further question about the same relation."""
    templates = relation.turns if rng.random() < 0.8 else relation.asks
    return answered(one_of(templates, rng, **forms(x=x, y=y)), relation, x, y)


def answered(question: str, relation: Relation, x: str, y: str) -> Turn:
    words = forms(x=x, y=y)
    return Turn(question, relation.answer.format_map(words), relation.brief.format_map(words))


def doubted(relation: Relation, x: str, y: str, rng: Random) -> Turn:
    """Return a yes-or-no question; the answer always states the correct fact."""
    if not relation.doubts:
        return straight(relation, x, y, rng)
    right = rng.random() < 0.5
    named = y if right else rng.choice(sorted(set(relation.facts.values()) - {y, x} - relation.general))
    inside = relation.answer.replace("{A_", "{a_").replace("{X}", "{x}").replace("{Y}", "{y}")
    inside = inside[0].lower() + inside[1:]
    word = "Yes" if right else "No"
    return Turn(one_of(relation.doubts, rng, **forms(x=x, y=named)), f"{word}, {inside.format_map(forms(x=x, y=y))}",
                f"{word}.")


def backwards(relation: Relation, x: str, y: str, rng: Random) -> Turn:
    lonely = relation.lonely()
    if not relation.backwards or not lonely:
        return straight(relation, x, y, rng)
    x, y = rng.choice(sorted(lonely.items()))
    words = forms(x=x, y=y)
    return Turn(one_of(relation.backwards, rng, **words), relation.answer.format_map(words),
                relation.brief_backwards.format_map(words))


def sizes(rng: Random) -> list[Turn]:
    """Return a question which of two things is bigger or smaller."""
    small, big = sorted(rng.sample(range(len(BY_SIZE)), 2))
    more, (winner, loser) = rng.choice((("bigger", (big, small)), ("smaller", (small, big))))
    x, y = (BY_SIZE[place] for place in (rng.sample((winner, loser), 2)))
    words = forms(x=x, y=y) | {"more": more}
    truth = "{a_x} is {more} than {a_y}.".format_map(forms(x=BY_SIZE[winner], y=BY_SIZE[loser]) | {"more": more})
    if rng.random() < 0.4:
        word = "Yes" if x == BY_SIZE[winner] else "No"
        return [Turn(one_of(SIZE_DOUBTS, rng, **words), f"{word}, {truth}", f"{word}.")]
    return [Turn(one_of(SIZE_ASKS, rng, **words), f"A{truth[1:]}", "{A_x}.".format_map(forms(x=BY_SIZE[winner])))]


def lists(rng: Random) -> list[Turn]:
    asking, names, answer = rng.choice(LISTS)
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return [Turn(expand(asking, rng), answer.format(listed), f"{listed[0].upper()}{listed[1:]}.")]


def unheard(rng: Random) -> list[Turn]:
    """Return a question about a made-up word; the answer is that the model does not know."""
    question, answer = rng.choice(UNHEARD)
    words = forms(x=invented(rng))
    return [Turn(question.format_map(words), answer.format_map(words), "I do not know.")]
