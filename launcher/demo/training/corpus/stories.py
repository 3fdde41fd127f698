"""Stories of three to six sentences, which contain the requested characters and things.

First the characters, the thing and the place of a story are chosen, then the sentences of a plot.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from launcher.demo.training.conversation import Conversation, Message, make_turn_messages
from launcher.demo.training.corpus.story_plots import BEDTIME_ENDINGS, PLOTS, PRANK_PLOT, SHORT_PLOTS, STORY_OPENINGS
from launcher.demo.training.corpus.template_expansion import (
    add_article,
    capitalize_first_letter,
    expand_random_template,
    expand_template,
    invent_word,
    make_slot_forms,
    vary_question,
)
from launcher.demo.training.corpus.words import (
    ANIMALS,
    BOY_NAMES,
    CHARACTER_TRAITS,
    CREATURES,
    FEMALE_CHARACTERS,
    GIRL_NAMES,
    MALE_CHARACTERS,
    PLACE_PHRASES,
    THING_ADJECTIVES,
    THINGS,
    TRADES,
)

CHARACTER_KINDS = (*ANIMALS, *CREATURES, *FEMALE_CHARACTERS, *MALE_CHARACTERS, *TRADES)
FEMALE_PRONOUNS, MALE_PRONOUNS = ("she", "her", "her"), ("he", "him", "his")
REQUESTABLE_ELEMENTS = ("name", "kind", "trait", "friend", "thing", "place")

STORY_REQUESTS = (
    "[Tell|Write|Read] me {a_sort}{about}.", "[Can|Could|Will] you tell me {a_sort}{about}?",
    "[Write|Make up|Invent] {a_sort}{about}.", "I want [to hear |]{a_sort}{about}.",
    "I would like [to hear |]{a_sort}{about}.", "[Do you know|Have you got] {a_sort}{about}?",
    "{A_sort}{about}, please.", "{SORT}{about} please", "{SORT}{about}", "Please [tell|write] me {a_sort}{about}.",
    "Let me hear {a_sort}{about}.", "[Give|Show] me {a_sort}{about}.", "Tell {a_sort}{about}.",
    "Please write {a_sort}{about}.", "May I have {a_sort}{about}?", "How about {a_sort}{about}?",
    "My child wants {a_sort}{about}.", "Think of {a_sort}{about}.", "[Hello|Hi|Hey], tell me {a_sort}{about}.",
    "I am bored. Tell me {a_sort}{about}.", "Tell us {a_sort}{about}.", "We need {a_sort}{about}.",
)
STORY_SORTS = ("story", "story", "story", "short story", "little story", "nice story", "good story", "new story",
               "tale", "fairy tale", "bedtime story", "funny story")
ANOTHER_STORY_REQUESTS = ("[Another one|One more|Again|More], please.", "Tell me another [one|story].",
                          "[Another|One more] story[.|!|, please.]", "And another one?")
NEXT_TOPIC_REQUESTS = ("Now [one|a story] about {x}.", "And [one|a story] about {x}?", "[What|How] about {x}?",
                       "Tell me one about {x} too.", "Now tell me [one|a story] about {x}.")
STORY_QUESTIONS = (  # questions that fit any story, and their answers
    ("[What was|What is] the name of the {kind}?", "The name of the {kind} was {name}."),
    ("What was the {kind} called?", "The name of the {kind} was {name}."),
    ("Who was [the story|it] about?", "The story was about {a_kind} named {name}."),
    ("Where did [{name}|the {kind}] live?", "{name} lived {place}."),
    ("[Who|What] was {name}?", "{name} was {a_kind} who lived {place}."),
)
CONTINUATION_REQUESTS = (
    "[Go on|Continue|Go on with this story|Continue this story|Finish this story|What happens next?]: {x}",
    "{x} [What happens next?|Go on.|And then?|Please go on.]", "{x}", "How does this story go on? {x}")
STORY_TITLES = ("The {Hero} and the {Thing}", "{name} and the {Thing}", "{name} the {Kind}", "The Story of {name}")


@dataclass(frozen=True)
class StoryCast:
    """Hero, friend, thing and place of a story."""

    name: str
    kind: str
    trait: str  # may be empty
    friend: str  # with its article, or a name
    thing: str
    place: str
    is_female: bool

    @property
    def hero_with_trait(self) -> str:
        return f"{self.trait} {self.kind}".strip()

    @property
    def friend_with_definite_article(self) -> str:
        """The friend after the first mention, with a definite article."""
        return re.sub(r"^an? ", "the ", self.friend)

    def make_slots(self) -> dict[str, str]:
        he, him, his = FEMALE_PRONOUNS if self.is_female else MALE_PRONOUNS
        words = make_slot_forms(hero=self.hero_with_trait, kind=self.kind, thing=self.thing, place=self.place, he=he,
                                him=him, his=his, friend=self.friend_with_definite_article)
        return words | {"name": self.name, "a_friend": self.friend,
                        "Hero": self.hero_with_trait.title(), "Thing": self.thing.title(), "Kind": self.kind.title()}


def choose_cast(rng: Random) -> StoryCast:
    kind = rng.choice(CHARACTER_KINDS if rng.random() < 0.8 else ("boy", "girl"))
    name, is_female = choose_name(kind, rng)
    return StoryCast(name, kind, rng.choice(CHARACTER_TRAITS) if rng.random() < 0.5 else "",
                     choose_friend(kind, name, rng), choose_thing(rng), rng.choice(PLACE_PHRASES), is_female)


def choose_name(kind: str, rng: Random) -> tuple[str, bool]:
    is_female = kind in FEMALE_CHARACTERS or (kind not in MALE_CHARACTERS and rng.random() < 0.5)
    return rng.choice(GIRL_NAMES if is_female else BOY_NAMES), is_female


def choose_friend(hero_kind: str, hero_name: str, rng: Random) -> str:
    """Return a character other than the hero: a name, or a kind with its article."""
    if rng.random() < 0.25:
        return rng.choice([other for other in GIRL_NAMES + BOY_NAMES if other != hero_name])
    return add_article(rng.choice([other for other in CHARACTER_KINDS if other != hero_kind]))


def choose_thing(rng: Random) -> str:
    plain = rng.choice(THINGS)
    return f"{rng.choice(THING_ADJECTIVES)} {plain}" if rng.random() < 0.5 else plain


def make_story_sentences(story_cast: StoryCast, rng: Random, sort: str = "story") -> list[str]:
    """Return the three to six sentences of a story; their number depends on the sort of story."""
    slots = story_cast.make_slots()
    short = "short" in sort or "little" in sort or rng.random() < 0.2
    plots = (PRANK_PLOT,) if "funny" in sort else SHORT_PLOTS if short else PLOTS
    plot = [rng.choice(STORY_OPENINGS), *rng.choice(plots)]
    if "bedtime" in sort:
        plot = [*[part for part in plot if not part.endswith("|]")][:5], rng.choice(BEDTIME_ENDINGS)]
    sentences = [expand_template(part, rng, **slots) for part in plot]
    return [sentence for sentence in sentences if sentence][:6]


def make_story_conversation(rng: Random) -> Conversation:
    """Return a request that names up to three elements of a story, the story, and perhaps further turns."""
    sort, requested = rng.choice(STORY_SORTS), choose_requested_elements(rng)
    story_cast = randomly_rename_cast(choose_cast(rng), rng)
    if not requested & {"kind", "trait"} and "name" in requested:
        story_cast = replace(story_cast, kind="girl" if story_cast.is_female else "boy",
                             friend=add_article(rng.choice(ANIMALS)))
    sentences = make_story_sentences(story_cast, rng, sort)
    messages = make_turn_messages(
        vary_question(make_story_request(describe_requested_elements(story_cast, requested, rng), sort, rng), rng),
        " ".join(sentences))
    while rng.random() < 0.2 and len(messages) < 6:
        story_cast = append_follow_up(messages, story_cast, rng)
    return Conversation(messages)


def choose_requested_elements(rng: Random) -> set[str]:
    """Choose the elements that a request names; a friend is only named together with a hero."""
    requested = set(rng.sample(REQUESTABLE_ELEMENTS, rng.choice((0, 1, 1, 1, 2, 2, 3))))
    return requested | {"kind"} if "friend" in requested and "name" not in requested else requested


def make_story_request(description: str, sort: str, rng: Random) -> str:
    return expand_random_template(STORY_REQUESTS, rng, about=description, **make_slot_forms(sort=sort))


def randomly_rename_cast(story_cast: StoryCast, rng: Random) -> StoryCast:
    """Replace name or kind by made-up words now and then, so that the model learns to copy instead of guessing."""
    if rng.random() < 0.1:
        name = capitalize_first_letter(invent_word(rng))
        story_cast = replace(story_cast, name=name, is_female=story_cast.kind in FEMALE_CHARACTERS
                             or (story_cast.kind not in MALE_CHARACTERS and name[-1] in "aei"))
    return replace(story_cast,
                   kind=invent_word(rng)) if rng.random() < 0.05 and story_cast.kind in ANIMALS else story_cast


def describe_requested_elements(story_cast: StoryCast, requested: Collection[str], rng: Random) -> str:
    """Return the part of a request that follows the word story."""
    parts = describe_requested_hero(story_cast, requested, rng)
    parts += [story_cast.friend] if "friend" in requested else []
    parts += [add_article(story_cast.thing)] if "thing" in requested else []
    place_phrase = f" {story_cast.place}" if "place" in requested else ""
    if not parts:
        return place_phrase and f" {rng.choice(('that happens', 'set', 'about life'))}{place_phrase}"
    *others, last = parts
    conjunction = rng.choice((" and ", " with ")) if "thing" in requested and len(others) == 1 else " and "
    return f" about {', '.join(others)}{conjunction if others else ''}{last}{place_phrase}"


def describe_requested_hero(story_cast: StoryCast, requested: Collection[str], rng: Random) -> list[str]:
    asked_kind = "kind" in requested or ("trait" in requested and story_cast.trait)
    kind = add_article(story_cast.hero_with_trait if "trait" in requested else story_cast.kind)
    if "name" not in requested:
        return [kind] if asked_kind else []
    if not asked_kind:
        return [story_cast.name]
    return [rng.choice((f"{kind} named {story_cast.name}", f"{kind} called {story_cast.name}"))]


def append_follow_up(messages: list[Message], story_cast: StoryCast, rng: Random) -> StoryCast:
    """Append another story, or a question about the hero of the last one. Return the cast of the latest story."""
    if rng.random() < 0.5:
        question, answer = rng.choice(STORY_QUESTIONS)
        messages += make_turn_messages(vary_question(expand_template(question, rng, **story_cast.make_slots()), rng),
                                       expand_template(answer, rng, **story_cast.make_slots()))
        return story_cast
    story_cast = choose_cast(rng)
    request = expand_random_template(ANOTHER_STORY_REQUESTS, rng) if rng.random() < 0.5 else expand_random_template(
        NEXT_TOPIC_REQUESTS, rng, x=add_article(story_cast.kind))
    messages += make_turn_messages(vary_question(request, rng), " ".join(make_story_sentences(story_cast, rng)))
    return story_cast


def make_continuation_conversation(rng: Random) -> Conversation:
    """Return a request to continue a story from its first sentence."""
    first, *rest = make_story_sentences(choose_cast(rng), rng)
    return Conversation(make_turn_messages(expand_random_template(CONTINUATION_REQUESTS, rng, x=first), " ".join(rest)))


def make_story_text(rng: Random) -> str:
    return " ".join(make_story_sentences(randomly_rename_cast(choose_cast(rng), rng), rng))


def make_titled_story_text(rng: Random) -> str:
    story_cast = choose_cast(rng)
    title = expand_random_template(STORY_TITLES, rng, **story_cast.make_slots())
    return f"{title}\n\n{' '.join(make_story_sentences(story_cast, rng))}"
