"""Mixture of the corpus: the share of each kind of document, for the demo model and for its styles.

Shares are counted in documents, which differ in length.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker
from launcher.demo.training.corpus import poems, stories
from launcher.demo.training.corpus.answer_styles import REWRITERS_BY_STYLE, make_restyled_document_maker
from launcher.demo.training.corpus.arithmetic import make_arithmetic_document
from launcher.demo.training.corpus.bible_verses import make_passage_maker, make_verse_question_maker
from launcher.demo.training.corpus.counting import make_counting_document
from launcher.demo.training.corpus.dialogues import make_dialogue
from launcher.demo.training.corpus.glosses import make_gloss_text_maker, make_meaning_question_maker, read_glosses
from launcher.demo.training.corpus.json_answers import make_json_document
from launcher.demo.training.corpus.sources.scripture import read_verses
from launcher.demo.training.corpus.spelling import make_spelling_document
from launcher.demo.training.corpus.tool_calling.conversations import make_tool_document

DocumentShares = Mapping[DocumentMaker, float]

# Stories and talk are learnt quickly; answers that must be exact need the largest shares.
BASE_SHARES: DocumentShares = {stories.make_story_conversation: 0.11, stories.make_story_text: 0.03,
                               stories.make_titled_story_text: 0.01, stories.make_continuation_conversation: 0.02,
                               make_dialogue: 0.19, poems.make_poem_text: 0.01, make_counting_document: 0.07,
                               make_arithmetic_document: 0.12, make_spelling_document: 0.07, make_json_document: 0.11,
                               make_tool_document: 0.18}
GLOSS_SHARE, GLOSS_TEXT_SHARE = 0.07, 0.01
MIN_WORD_OCCURRENCES = 20  # minimum occurrences of a word in WordNet's counts; rarer ones are left out
STYLED_DOCUMENT_SHARES: DocumentShares = {
    stories.make_story_conversation: 0.3, make_dialogue: 0.45, make_counting_document: 0.08,
    make_arithmetic_document: 0.09, make_spelling_document: 0.08}
VERSE_SHARE, PASSAGE_SHARE = 0.3, 0.05


def make_base_shares(wordnet: Path) -> DocumentShares:
    known = read_glosses(wordnet, MIN_WORD_OCCURRENCES)
    return {**BASE_SHARES, make_meaning_question_maker(known): GLOSS_SHARE,
            make_gloss_text_maker(known): GLOSS_TEXT_SHARE}


def make_styled_document_shares(style: str, bible: Path) -> DocumentShares:
    """Return the shares for a style. `bible` is only read for the style `kjv`."""
    shares = {make_restyled_document_maker(make, REWRITERS_BY_STYLE[style]): share
              for make, share in STYLED_DOCUMENT_SHARES.items()}
    if style == "kjv":
        known = read_verses(bible)
        shares |= {make_verse_question_maker(known): VERSE_SHARE, make_passage_maker(known): PASSAGE_SHARE}
    return shares


def generate_documents(shares: DocumentShares, seed: int) -> Iterator[Conversation | str]:
    """Yield random documents without end."""
    rng = Random(seed)  # noqa: S311 - reproducible text, not secrets
    makers, weights = list(shares), list(shares.values())
    while True:
        yield rng.choices(makers, weights)[0](rng)
