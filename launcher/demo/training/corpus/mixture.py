"""Mixture of the corpus: the share of each kind of document, for the demo model and for its voices.

Shares are counted in documents, which differ in length.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from launcher.demo.training.corpus import poems, stories
from launcher.demo.training.corpus.calls import calls
from launcher.demo.training.corpus.counting import counting
from launcher.demo.training.corpus.dialogues import dialogue
from launcher.demo.training.corpus.glosses import glosses, maker, sentences
from launcher.demo.training.corpus.objects import objects
from launcher.demo.training.corpus.scripture import verses
from launcher.demo.training.corpus.spelling import spelling
from launcher.demo.training.corpus.sums import sums
from launcher.demo.training.corpus.verses import passage_maker, verse_maker
from launcher.demo.training.corpus.voices import VOICES, spoken
from launcher.demo.training.talk import Maker, Talk

Shares = Mapping[Maker, float]

# Stories and talk are learnt quickly; answers that must be exact need the largest shares.
OWN: Shares = {stories.story: 0.11, stories.plain: 0.03, stories.titled: 0.01, stories.begun: 0.02, dialogue: 0.19,
               poems.plain: 0.01, counting: 0.07, sums: 0.12, spelling: 0.07, objects: 0.11, calls: 0.18}
GLOSSES, SENTENCES = 0.07, 0.01
MET = 20  # minimum occurrences of a word in WordNet's counts; rarer ones are left out
SPOKEN: Shares = {stories.story: 0.3, dialogue: 0.45, counting: 0.08, sums: 0.09, spelling: 0.08}
VERSES, PASSAGES = 0.3, 0.05


def base(wordnet: Path) -> Shares:
    known = glosses(wordnet, MET)
    return {**OWN, maker(known): GLOSSES, sentences(known): SENTENCES}


def voiced(voice: str, bible: Path) -> Shares:
    """Return the shares for a voice. `bible` is only read for the voice `kjv`."""
    shares = {spoken(make, VOICES[voice]): share for make, share in SPOKEN.items()}
    if voice == "kjv":
        known = verses(bible)
        shares |= {verse_maker(known): VERSES, passage_maker(known): PASSAGES}
    return shares


def documents(shares: Shares, seed: int) -> Iterator[Talk | str]:
    """Yield random documents without end."""
    rng = Random(seed)  # noqa: S311 - reproducible text, not secrets
    makers, weights = list(shares), list(shares.values())
    while True:
        yield rng.choices(makers, weights)[0](rng)
