"""Tools with random names and parameters, which the model can only call correctly by reading their schemas."""

from random import Random

from launcher.demo.training.corpus.asking import great, listed
from launcher.demo.training.corpus.errand import Errand
from launcher.demo.training.corpus.fields import FIELDS
from launcher.demo.training.corpus.values import THINGS, made_up

VERBS = (
    "make", "move", "clean", "wash", "fill", "close", "turn", "lift", "push", "pull", "fix", "check", "start", "stop",
    "print", "build", "pack", "count", "hide", "show", "sell", "mark", "test", "scan", "load", "store", "sort")
NOUNS = (
    *THINGS, "file", "page", "door", "room", "car", "plan", "garden", "list", "wall", "robot", "game", "picture",
    "letter",
)
WAYS = (
    "{verb} the {noun} with {pairs}", "{verb} a {noun} with {pairs}", "{verb} my {noun} with {pairs}",
    "{verb} the {noun}: {pairs}", "I want to {verb} the {noun} with {pairs}.", "{verb} the {noun}, {pairs}",
    "{verb} one {noun} with {pairs}", "Let us {verb} the {noun} with {pairs}.")
FORMS = (
    "{field} {slot}", "{field} {slot}", "{field} = {slot}", "the {field} {slot}", "{slot} as {field}",
    "{field}: {slot}")


def invented(rng: Random) -> Errand:
    verb = made_up(rng) if rng.random() < 0.25 else rng.choice(VERBS)
    noun = made_up(rng) if rng.random() < 0.35 else rng.choice(NOUNS)
    kinds = fields(rng)
    optional = rng.choice(list(kinds)) if len(kinds) > 1 and rng.random() < 0.3 else ""
    takes = " ".join(f"{name}:{kind}{'?' if name == optional else ''}" for name, kind in kinds.items())
    given = [name for name in kinds if name != optional or rng.random() < 0.5]
    return Errand(name_of(rng, verb, noun), f"{great(verb)} the {noun}", takes, (asked(rng, verb, noun, given),),
                  (f"Done. The {noun} is ready.",))


def fields(rng: Random) -> dict[str, str]:
    """Return names of parameters with their kinds; some names are made up."""
    known = {name: FIELDS[name] for name in rng.sample(sorted(FIELDS), rng.choice((1, 1, 2, 2, 3)))}
    if rng.random() < 0.25:
        known[made_up(rng)] = rng.choice(("word", "number", "name", "colour", "few"))
    return dict(list(known.items())[-3:])


def name_of(rng: Random, verb: str, noun: str) -> str:
    snake = f"{verb}_{noun}"
    return rng.choice((snake, snake, f"{verb}_the_{noun}", f"{verb}{great(noun)}", f"{noun}_{verb}", verb))


def asked(rng: Random, verb: str, noun: str, given: list[str]) -> str:
    """Return the template of a request, whose slots are the parameters."""
    form, way = rng.choice(FORMS), rng.choice(WAYS)
    pairs = listed(form.replace("{field}", name).replace("{slot}", f"{{{name}}}") for name in given)
    said = way.replace("{verb}", verb).replace("{noun}", noun).replace("{pairs}", pairs)
    return great(said)
