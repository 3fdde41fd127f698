"""Tools with random names and parameters, which the model can only call correctly by reading their schemas."""

from random import Random

from launcher.demo.training.corpus.json_templates import KINDS_BY_FIELD
from launcher.demo.training.corpus.request_variations import capitalize_first_letter, join_words
from launcher.demo.training.corpus.tool_calling.tool_scenario import ToolScenario
from launcher.demo.training.corpus.values import THINGS, invent_word

TOOL_VERBS = (
    "make", "move", "clean", "wash", "fill", "close", "turn", "lift", "push", "pull", "fix", "check", "start", "stop",
    "print", "build", "pack", "count", "hide", "show", "sell", "mark", "test", "scan", "load", "store", "sort")
TOOL_NOUNS = (
    *THINGS, "file", "page", "door", "room", "car", "plan", "garden", "list", "wall", "robot", "game", "picture",
    "letter",
)
REQUEST_TEMPLATES = (
    "{verb} the {noun} with {pairs}", "{verb} a {noun} with {pairs}", "{verb} my {noun} with {pairs}",
    "{verb} the {noun}: {pairs}", "I want to {verb} the {noun} with {pairs}.", "{verb} the {noun}, {pairs}",
    "{verb} one {noun} with {pairs}", "Let us {verb} the {noun} with {pairs}.")
ARGUMENT_TEMPLATES = (
    "{field} {slot}", "{field} {slot}", "{field} = {slot}", "the {field} {slot}", "{slot} as {field}",
    "{field}: {slot}")


def invent_tool(rng: Random) -> ToolScenario:
    verb = invent_word(rng) if rng.random() < 0.25 else rng.choice(TOOL_VERBS)
    noun = invent_word(rng) if rng.random() < 0.35 else rng.choice(TOOL_NOUNS)
    kinds = choose_parameters(rng)
    optional = rng.choice(list(kinds)) if len(kinds) > 1 and rng.random() < 0.3 else ""
    parameter_spec = " ".join(f"{name}:{kind}{'?' if name == optional else ''}" for name, kind in kinds.items())
    requested_names = [name for name in kinds if name != optional or rng.random() < 0.5]
    return ToolScenario(choose_tool_name(rng, verb, noun), f"{capitalize_first_letter(verb)} the {noun}",
                        parameter_spec, (make_request_template(rng, verb, noun, requested_names),),
                        (f"Done. The {noun} is ready.",))


def choose_parameters(rng: Random) -> dict[str, str]:
    """Return names of parameters with their kinds; some names are made up."""
    kinds_by_parameter = {name: KINDS_BY_FIELD[name]
                          for name in rng.sample(sorted(KINDS_BY_FIELD), rng.choice((1, 1, 2, 2, 3)))}
    if rng.random() < 0.25:
        kinds_by_parameter[invent_word(rng)] = rng.choice(("word", "number", "name", "colour", "few"))
    return dict(list(kinds_by_parameter.items())[-3:])


def choose_tool_name(rng: Random, verb: str, noun: str) -> str:
    snake_case_name = f"{verb}_{noun}"
    return rng.choice((snake_case_name, snake_case_name, f"{verb}_the_{noun}", f"{verb}{capitalize_first_letter(noun)}",
                       f"{noun}_{verb}", verb))


def make_request_template(rng: Random, verb: str, noun: str, parameter_names: list[str]) -> str:
    """Return the template of a request, whose slots are the parameters."""
    form, request_template = rng.choice(ARGUMENT_TEMPLATES), rng.choice(REQUEST_TEMPLATES)
    pairs = join_words(form.replace("{field}", name).replace("{slot}", f"{{{name}}}") for name in parameter_names)
    request = request_template.replace("{verb}", verb).replace("{noun}", noun).replace("{pairs}", pairs)
    return capitalize_first_letter(request)
