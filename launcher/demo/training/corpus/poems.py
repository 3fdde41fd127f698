"""Short poems about a requested subject: two pairs of rhyming lines."""

from random import Random

from launcher.demo.training.corpus.conversation_turn import ConversationTurn
from launcher.demo.training.corpus.template_expansion import (
    capitalize_first_letter,
    expand_random_template,
    make_slot_forms,
)
from launcher.demo.training.corpus.words import ANIMALS, CREATURES, THINGS, TRADES

POEM_REQUESTS = ("[Write|Make|Tell me|Give me|Say] a [short |little |nice |]poem about {a_x}.",
                 "A poem about {a_x}, please.",
                 "[A p|P]oem about {a_x}", "Can you write a poem about {a_x}?", "I want a poem about {a_x}.",
                 "Please write a [short |]poem about {a_x}.",
                 "Do you know a poem about {a_x}?", "Write me a poem about the {x}.", "Make up a rhyme about {a_x}.",
                 "Write four lines about {a_x}.", "Do you know a rhyme about the {x}?",
                 "Write some verses about {a_x}.")
OPEN_POEM_REQUESTS = ("[Write|Make|Tell me|Give me|Say] [me |]a poem.", "A poem, please.", "Poem!",
                      "Can you write a poem?", "I want to hear a poem.")
CHARACTER_POEM_OPENINGS = (
    "The little {x} sat under a tree\nand [sang|hummed|made] a song for you and me.",
    "I met {a_x} upon the way,\nand we [went walking|sat and laughed] all the day.",
    "{A_x} looked up into the night\nand saw the stars, so [clear|small|soft] and bright.",
    "Dear little {x}, come out and play,\nthe sun is [warm|up], and it is May.",
    "There was {a_x} who had a hat,\nand on the hat there [sat|slept] a cat.",
    "The {x} went down to see the sea\nand [drank|had] a cup of morning tea.",
    "{A_x} once found a silver spoon\nand used it to dig up the moon.",
    "The {x} is home, the day is done,\nand down behind the hill goes the sun.",
    "I know {a_x} who likes to run\nfrom [early morn|breakfast time] to set of sun.",
    "The {x} lay down upon its bed\nwith [happy|sleepy] dreams inside its head.",
)
THING_POEM_OPENINGS = (
    "I have {a_x}, it is my own,\nI like it when I am alone.",
    "My {x} is here, my {x} is there,\nI take my {x} everywhere.",
    "{A_x} was lying in the sun\nand asked us all to have some fun.",
    "I put my {x} beside my bed\nwith other dreams inside my head.",
    "I found {a_x} beside the sea\nand took it home to live with me.",
    "Oh little {x}, so fine and new,\nI have a little song for you.",
    "The finest {x} I ever saw\nwas lying on the kitchen floor.",
    "{A_x} can be a friend to you\nwhen [winter comes|days are grey] and skies are too.",
)
POEM_TITLES = ("The {x}", "To the {x}", "Song of the {x}", "A Poem about the {x}", "Four Lines about the {x}")
POEM_CLOSINGS = (
    "The wind blew soft, the wind blew low,\nand then it was the time to go.",
    "The [clouds|birds] went by, the sky was blue,\nand I was there, and so were you.",
    "We laughed and danced till it was late,\nthen said good night beside the gate.",
    "And when the moon began to shine,\nI held your hand and you held mine.",
    "So close your eyes and sleep till morn,\nwhen a new day will be born.",
    "The rain may fall, the snow may too,\nbut I am always here with you.",
    "The day was long, the night is deep,\nand now it is the time to sleep.",
    "And if you ask me, was it so?\nI only say, I do not know.",
    "The river runs, the rivers sing,\nand after winter comes the spring.",
    "The world is wide, the world is round,\nand joy is waiting to be found.",
)


def make_poem(subject: str, openings: tuple[str, ...], rng: Random) -> str:
    opening = expand_random_template(openings, rng, **make_slot_forms(x=subject))
    lines = f"{opening}\n{expand_random_template(POEM_CLOSINGS, rng)}"
    return "\n".join(capitalize_first_letter(line) for line in lines.split("\n"))


def make_poem_turns(rng: Random) -> list[ConversationTurn]:
    subjects, openings = rng.choice(((ANIMALS + CREATURES + TRADES, CHARACTER_POEM_OPENINGS),
                                     (THINGS, THING_POEM_OPENINGS)))
    subject = rng.choice(subjects)
    request_templates = OPEN_POEM_REQUESTS if rng.random() < 0.15 else POEM_REQUESTS
    return [ConversationTurn(expand_random_template(request_templates, rng, **make_slot_forms(x=subject)),
                             make_poem(subject, openings, rng))]


def make_poem_text(rng: Random) -> str:
    """Return a poem with its title, as plain text without a question."""
    subject = rng.choice(ANIMALS)
    title = expand_random_template(POEM_TITLES, rng, x=subject.title())
    return f"{title}\n\n{make_poem(subject, CHARACTER_POEM_OPENINGS, rng)}"
