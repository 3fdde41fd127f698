"""Questions about facts of the demo world: forwards, backwards, for yes or no, and continued with "And a cow?"."""

from random import Random

from launcher.demo.training.corpus.conversation_turn import ConversationTurn
from launcher.demo.training.corpus.facts import RELATIONS, FactRelation
from launcher.demo.training.corpus.template_expansion import (
    expand_random_template,
    expand_template,
    invent_word,
    make_slot_forms,
)
from launcher.demo.training.corpus.words import DAYS, MONTHS, SEASONS, THINGS_BY_SIZE

SIZE_QUESTIONS = ("[Which|What] is {more}, {a_x} or {a_y}?", "What is {more}: {a_x} or {a_y}?",
                  "Who is {more}, {a_x} or {a_y}?", "{A_x} or {a_y}, which is {more}?",
                  "Tell me what is {more}, {a_x} or {a_y}.")
SIZE_YES_NO_QUESTIONS = ("Is {a_x} {more} than {a_y}?",)
LIST_QUESTIONS = (
    ("[Name|Say|List|Tell me|What are] the days of the week[.|!|?]", DAYS, "The days of the week are {}."),
    ("[Name|Say|List|Tell me|What are] the months of the year[.|!|?]", MONTHS, "The months of the year are {}."),
    ("[Name|Say|List|Tell me|What are] the [four |]seasons[.|!|?]", SEASONS, "The four seasons are {}."),
)
UNKNOWN_WORD_QUESTIONS = (
    ("What does {a_x} say?", "I do not know what {a_x} says."), ("Where does {a_x} live?",
                                                                 "I do not know where {a_x} lives."),
    ("What does {a_x} eat?", "I do not know what {a_x} eats."), ("What is {a_x}?", "I do not know what {a_x} is."),
    ("What is the capital of {X}?", "I do not know the capital of {X}."), ("Who is {X}?", "I do not know who {X} is."),
    ("What does {x} mean?", "I do not know what {x} means."), ("What colour is {a_x}?",
                                                               "I do not know what colour {a_x} is."),
)
RELATION_WEIGHTS = [len(relation.facts) ** 0.5 for relation in RELATIONS]


def make_fact_turns(rng: Random) -> list[ConversationTurn]:
    """Return one to three questions about one relation; those after the first may be short."""
    relation = rng.choices(RELATIONS, RELATION_WEIGHTS)[0]
    facts = rng.sample(sorted(relation.facts.items()), 3)
    first = rng.choice((make_direct_question, make_direct_question, make_yes_no_question,
                        make_backwards_question))(relation, *facts[0], rng)
    return [first, *(make_follow_up_question(relation, x, y, rng) for x, y in facts[1:][:rng.choice((0, 0, 0, 1, 2))])]


def make_direct_question(relation: FactRelation, x: str, y: str, rng: Random) -> ConversationTurn:
    return make_answered_turn(expand_random_template(relation.questions, rng, **make_slot_forms(x=x, y=y)),
                              relation, x, y)


def make_follow_up_question(relation: FactRelation, x: str, y: str, rng: Random) -> ConversationTurn:
    """Return a further question about the same relation."""
    templates = relation.follow_ups if rng.random() < 0.8 else relation.questions
    return make_answered_turn(expand_random_template(templates, rng, **make_slot_forms(x=x, y=y)), relation, x, y)


def make_answered_turn(question: str, relation: FactRelation, x: str, y: str) -> ConversationTurn:
    words = make_slot_forms(x=x, y=y)
    return ConversationTurn(question, relation.answer_template.format_map(words),
                            relation.brief_answer.format_map(words))


def make_yes_no_question(relation: FactRelation, x: str, y: str, rng: Random) -> ConversationTurn:
    """Return a yes-or-no question; the answer always states the correct fact."""
    if not relation.yes_no_questions:
        return make_direct_question(relation, x, y, rng)
    right = rng.random() < 0.5
    named = y if right else rng.choice(sorted(set(relation.facts.values()) - {y, x} - relation.widely_true_values))
    clause = relation.answer_template.replace("{A_", "{a_").replace("{X}", "{x}").replace("{Y}", "{y}")
    clause = clause[0].lower() + clause[1:]
    word = "Yes" if right else "No"
    return ConversationTurn(expand_random_template(relation.yes_no_questions, rng, **make_slot_forms(x=x, y=named)),
                            f"{word}, {clause.format_map(make_slot_forms(x=x, y=y))}", f"{word}.")


def make_backwards_question(relation: FactRelation, x: str, y: str, rng: Random) -> ConversationTurn:
    reversible_facts = relation.select_reversible_facts()
    if not relation.backwards_questions or not reversible_facts:
        return make_direct_question(relation, x, y, rng)
    x, y = rng.choice(sorted(reversible_facts.items()))
    words = make_slot_forms(x=x, y=y)
    return ConversationTurn(expand_random_template(relation.backwards_questions, rng, **words),
                            relation.answer_template.format_map(words),
                            relation.brief_backwards_answer.format_map(words))


def make_size_comparison_turns(rng: Random) -> list[ConversationTurn]:
    """Return a question which of two things is bigger or smaller."""
    small, big = sorted(rng.sample(range(len(THINGS_BY_SIZE)), 2))
    comparative, (winner, loser) = rng.choice((("bigger", (big, small)), ("smaller", (small, big))))
    x, y = (THINGS_BY_SIZE[index] for index in (rng.sample((winner, loser), 2)))
    words = make_slot_forms(x=x, y=y) | {"more": comparative}
    truth = "{a_x} is {more} than {a_y}.".format_map(make_slot_forms(x=THINGS_BY_SIZE[winner], y=THINGS_BY_SIZE[loser])
                                                     | {"more": comparative})
    if rng.random() < 0.4:
        word = "Yes" if x == THINGS_BY_SIZE[winner] else "No"
        return [ConversationTurn(expand_random_template(SIZE_YES_NO_QUESTIONS, rng, **words), f"{word}, {truth}",
                                 f"{word}.")]
    return [ConversationTurn(expand_random_template(SIZE_QUESTIONS, rng, **words), f"A{truth[1:]}",
                             "{A_x}.".format_map(make_slot_forms(x=THINGS_BY_SIZE[winner])))]


def make_calendar_list_turns(rng: Random) -> list[ConversationTurn]:
    question_template, names, answer = rng.choice(LIST_QUESTIONS)
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return [ConversationTurn(expand_template(question_template, rng), answer.format(listed),
                             f"{listed[0].upper()}{listed[1:]}.")]


def make_unknown_word_turns(rng: Random) -> list[ConversationTurn]:
    """Return a question about a made-up word; the answer is that the model does not know."""
    question, answer = rng.choice(UNKNOWN_WORD_QUESTIONS)
    words = make_slot_forms(x=invent_word(rng))
    return [ConversationTurn(question.format_map(words), answer.format_map(words), "I do not know.")]
