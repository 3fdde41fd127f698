"""Stories of three to six sentences, which contain the requested characters and things.

First the characters, the thing and the place of a story are chosen, then the sentences of a plot.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from launcher.demo.training.corpus.grammar import a, capital, expand, forms, invented, one_of, put
from launcher.demo.training.corpus.plots import BEDTIME, OPENINGS, PLOTS, PRANK, SHORT
from launcher.demo.training.corpus.words import (
    ANIMALS,
    BOYS,
    CREATURES,
    GIRLS,
    LOOKS,
    MEN,
    PLACES,
    THINGS,
    TRADES,
    TRAITS,
    WOMEN,
)
from launcher.demo.training.talk import Message, Talk, exchange

KINDS = (*ANIMALS, *CREATURES, *WOMEN, *MEN, *TRADES)
SHE, HE = ("she", "her", "her"), ("he", "him", "his")
ASKED = ("name", "kind", "trait", "friend", "thing", "place")

REQUESTS = (
    "[Tell|Write|Read] me {a_sort}{about}.", "[Can|Could|Will] you tell me {a_sort}{about}?",
    "[Write|Make up|Invent] {a_sort}{about}.", "I want [to hear |]{a_sort}{about}.",
    "I would like [to hear |]{a_sort}{about}.", "[Do you know|Have you got] {a_sort}{about}?",
    "{A_sort}{about}, please.", "{SORT}{about} please", "{SORT}{about}", "Please [tell|write] me {a_sort}{about}.",
    "Let me hear {a_sort}{about}.", "[Give|Show] me {a_sort}{about}.", "Tell {a_sort}{about}.",
    "Please write {a_sort}{about}.", "May I have {a_sort}{about}?", "How about {a_sort}{about}?",
    "My child wants {a_sort}{about}.", "Think of {a_sort}{about}.", "[Hello|Hi|Hey], tell me {a_sort}{about}.",
    "I am bored. Tell me {a_sort}{about}.", "Tell us {a_sort}{about}.", "We need {a_sort}{about}.",
)
SORTS = ("story", "story", "story", "short story", "little story", "nice story", "good story", "new story", "tale",
         "fairy tale", "bedtime story", "funny story")
MORE = ("[Another one|One more|Again|More], please.", "Tell me another [one|story].",
        "[Another|One more] story[.|!|, please.]", "And another one?")
NEXT = ("Now [one|a story] about {x}.", "And [one|a story] about {x}?", "[What|How] about {x}?",
        "Tell me one about {x} too.", "Now tell me [one|a story] about {x}.")
ABOUT_IT = (  # questions that fit any story, and their answers
    ("[What was|What is] the name of the {kind}?", "The name of the {kind} was {name}."),
    ("What was the {kind} called?", "The name of the {kind} was {name}."),
    ("Who was [the story|it] about?", "The story was about {a_kind} named {name}."),
    ("Where did [{name}|the {kind}] live?", "{name} lived {place}."),
    ("[Who|What] was {name}?", "{name} was {a_kind} who lived {place}."),
)
BEGUN = ("[Go on|Continue|Go on with this story|Continue this story|Finish this story|What happens next?]: {x}",
         "{x} [What happens next?|Go on.|And then?|Please go on.]", "{x}", "How does this story go on? {x}")
TITLES = ("The {Hero} and the {Thing}", "{name} and the {Thing}", "{name} the {Kind}", "The Story of {name}")


@dataclass(frozen=True)
class Cast:
    name: str
    kind: str
    trait: str  # may be empty
    friend: str  # with its article, or a name
    thing: str
    place: str
    she: bool

    @property
    def hero(self) -> str:
        return f"{self.trait} {self.kind}".strip()

    @property
    def again(self) -> str:
        """The friend after the first mention, with a definite article."""
        return re.sub(r"^an? ", "the ", self.friend)

    def slots(self) -> dict[str, str]:
        he, him, his = SHE if self.she else HE
        words = forms(hero=self.hero, kind=self.kind, thing=self.thing, place=self.place, he=he, him=him, his=his,
                      friend=self.again)
        return words | {"name": self.name, "a_friend": self.friend,
                        "Hero": self.hero.title(), "Thing": self.thing.title(), "Kind": self.kind.title()}


def cast(rng: Random) -> Cast:
    kind = rng.choice(KINDS if rng.random() < 0.8 else ("boy", "girl"))
    name, she = named(kind, rng)
    return Cast(name, kind, rng.choice(TRAITS) if rng.random() < 0.5 else "", friend(kind, name, rng), thing(rng),
                rng.choice(PLACES), she)


def named(kind: str, rng: Random) -> tuple[str, bool]:
    she = kind in WOMEN or (kind not in MEN and rng.random() < 0.5)
    return rng.choice(GIRLS if she else BOYS), she


def friend(kind: str, name: str, rng: Random) -> str:
    """Return a character other than the hero: a name, or a kind with its article."""
    if rng.random() < 0.25:
        return rng.choice([other for other in GIRLS + BOYS if other != name])
    return a(rng.choice([other for other in KINDS if other != kind]))


def thing(rng: Random) -> str:
    plain = rng.choice(THINGS)
    return f"{rng.choice(LOOKS)} {plain}" if rng.random() < 0.5 else plain


def tell(known: Cast, rng: Random, sort: str = "story") -> list[str]:
    """Return the three to six sentences of a story; their number depends on the sort of story."""
    slots = known.slots()
    short = "short" in sort or "little" in sort or rng.random() < 0.2
    plots = (PRANK,) if "funny" in sort else SHORT if short else PLOTS
    plot = [rng.choice(OPENINGS), *rng.choice(plots)]
    if "bedtime" in sort:
        plot = [*[part for part in plot if not part.endswith("|]")][:5], rng.choice(BEDTIME)]
    told = [expand(part, rng, **slots) for part in plot]
    return [sentence for sentence in told if sentence][:6]


def story(rng: Random) -> Talk:
    """Return a request that names up to three elements of a story, the story, and perhaps further turns."""
    sort, wanted = rng.choice(SORTS), choose(rng)
    known = strange(cast(rng), rng)
    if not wanted & {"kind", "trait"} and "name" in wanted:
        known = replace(known, kind="girl" if known.she else "boy", friend=a(rng.choice(ANIMALS)))
    told = tell(known, rng, sort)
    talk = exchange(put(request(about_what(known, wanted, rng), sort, rng), rng), " ".join(told))
    while rng.random() < 0.2 and len(talk) < 6:
        known = follow_up(talk, known, rng)
    return Talk(talk)


def choose(rng: Random) -> set[str]:
    """Choose the elements that a request names; a friend is only named together with a hero."""
    wanted = set(rng.sample(ASKED, rng.choice((0, 1, 1, 1, 2, 2, 3))))
    return wanted | {"kind"} if "friend" in wanted and "name" not in wanted else wanted


def request(about: str, sort: str, rng: Random) -> str:
    return one_of(REQUESTS, rng, about=about, **forms(sort=sort))


def strange(known: Cast, rng: Random) -> Cast:
    """Replace name or kind by made-up words now and then, so that the model learns to copy instead of guessing."""
    if rng.random() < 0.1:
        name = capital(invented(rng))
        known = replace(known, name=name, she=known.kind in WOMEN or (known.kind not in MEN and name[-1] in "aei"))
    return replace(known, kind=invented(rng)) if rng.random() < 0.05 and known.kind in ANIMALS else known


def about_what(known: Cast, wanted: Collection[str], rng: Random) -> str:
    """Return the part of a request that follows the word story."""
    parts = who(known, wanted, rng)
    parts += [known.friend] if "friend" in wanted else []
    parts += [a(known.thing)] if "thing" in wanted else []
    where = f" {known.place}" if "place" in wanted else ""
    if not parts:
        return where and f" {rng.choice(('that happens', 'set', 'about life'))}{where}"
    *others, last = parts
    joint = rng.choice((" and ", " with ")) if "thing" in wanted and len(others) == 1 else " and "
    return f" about {', '.join(others)}{joint if others else ''}{last}{where}"


def who(known: Cast, wanted: Collection[str], rng: Random) -> list[str]:
    asked_kind = "kind" in wanted or ("trait" in wanted and known.trait)
    kind = a(known.hero if "trait" in wanted else known.kind)
    if "name" not in wanted:
        return [kind] if asked_kind else []
    if not asked_kind:
        return [known.name]
    return [rng.choice((f"{kind} named {known.name}", f"{kind} called {known.name}"))]


def follow_up(talk: list[Message], known: Cast, rng: Random) -> Cast:
    """Append another story, or a question about the hero of the last one. Return the cast of the latest story."""
    if rng.random() < 0.5:
        question, answer = rng.choice(ABOUT_IT)
        talk += exchange(put(expand(question, rng, **known.slots()), rng), expand(answer, rng, **known.slots()))
        return known
    known = cast(rng)
    asking = one_of(MORE, rng) if rng.random() < 0.5 else one_of(NEXT, rng, x=a(known.kind))
    talk += exchange(put(asking, rng), " ".join(tell(known, rng)))
    return known


def begun(rng: Random) -> Talk:
    """Return a request to continue a story from its first sentence."""
    first, *rest = tell(cast(rng), rng)
    return Talk(exchange(one_of(BEGUN, rng, x=first), " ".join(rest)))


def plain(rng: Random) -> str:
    return " ".join(tell(strange(cast(rng), rng), rng))


def titled(rng: Random) -> str:
    known = cast(rng)
    return f"{one_of(TITLES, rng, **known.slots())}\n\n{' '.join(tell(known, rng))}"
