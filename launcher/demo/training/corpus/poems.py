"""Short poems about a requested subject: two pairs of rhyming lines."""

from random import Random

from launcher.demo.training.corpus.grammar import capital, forms, one_of
from launcher.demo.training.corpus.turns import Turn
from launcher.demo.training.corpus.words import ANIMALS, CREATURES, THINGS, TRADES

ASKS = ("[Write|Make|Tell me|Give me|Say] a [short |little |nice |]poem about {a_x}.", "A poem about {a_x}, please.",
        "[A p|P]oem about {a_x}", "Can you write a poem about {a_x}?", "I want a poem about {a_x}.",
        "Please write a [short |]poem about {a_x}.",
        "Do you know a poem about {a_x}?", "Write me a poem about the {x}.", "Make up a rhyme about {a_x}.",
        "Write four lines about {a_x}.", "Do you know a rhyme about the {x}?", "Write some verses about {a_x}.")
OPEN_ASKS = ("[Write|Make|Tell me|Give me|Say] [me |]a poem.", "A poem, please.", "Poem!", "Can you write a poem?",
             "I want to hear a poem.")
ABOUT_SOMEBODY = (
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
ABOUT_THINGS = (
    "I have {a_x}, it is my own,\nI like it when I am alone.",
    "My {x} is here, my {x} is there,\nI take my {x} everywhere.",
    "{A_x} was lying in the sun\nand asked us all to have some fun.",
    "I put my {x} beside my bed\nwith other dreams inside my head.",
    "I found {a_x} beside the sea\nand took it home to live with me.",
    "Oh little {x}, so fine and new,\nI have a little song for you.",
    "The finest {x} I ever saw\nwas lying on the kitchen floor.",
    "{A_x} can be a friend to you\nwhen [winter comes|days are grey] and skies are too.",
)
TITLES = ("The {x}", "To the {x}", "Song of the {x}", "A Poem about the {x}", "Four Lines about the {x}")
CLOSINGS = (
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


def poem(subject: str, openings: tuple[str, ...], rng: Random) -> str:
    lines = f"{one_of(openings, rng, **forms(x=subject))}\n{one_of(CLOSINGS, rng)}"
    return "\n".join(capital(line) for line in lines.split("\n"))


def poems(rng: Random) -> list[Turn]:
    subjects, openings = rng.choice(((ANIMALS + CREATURES + TRADES, ABOUT_SOMEBODY), (THINGS, ABOUT_THINGS)))
    subject = rng.choice(subjects)
    asks = OPEN_ASKS if rng.random() < 0.15 else ASKS
    return [Turn(one_of(asks, rng, **forms(x=subject)), poem(subject, openings, rng))]


def plain(rng: Random) -> str:
    """Return a poem with its title, as plain text without a question."""
    subject = rng.choice(ANIMALS)
    return f"{one_of(TITLES, rng, x=subject.title())}\n\n{poem(subject, ABOUT_SOMEBODY, rng)}"
