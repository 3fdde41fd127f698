"""Talks from the Bible: questions that are answered with a verse, and passages as plain text.

The topic of a verse is determined only by its words.
"""

import re
from collections.abc import Iterable, Sequence
from random import Random

from launcher.demo.training.corpus.grammar import capital, one_of, put
from launcher.demo.training.corpus.scripture import Verse
from launcher.demo.training.talk import Maker, Talk, asked

ABOUT = ("Tell me about {x}.", "What does the Bible say about {x}?", "Speak to me of {x}.", "Say something about {x}.",
         "What about {x}?", "What do you know about {x}?", "Give me a verse about {x}.", "A verse about {x}, please.",
         "Teach me about {x}.", "{X}?", "What do you think of {x}?", "Where can I find {x}?",
         "Tell me a story about {x}.", "Write something about {x}.")
OPEN = ("Say something.", "Speak.", "Give me a verse.", "Tell me something wise.", "What shall I do?", "Read to me.",
        "Give me advice.", "Teach me.", "What is the truth?", "Write something beautiful.", "I am listening.",
        "How should I live?", "A verse, please.")
TOPICS = (
    "love", "light", "wisdom", "water", "bread", "fire", "peace", "joy", "hope", "faith", "truth", "mercy", "heaven",
    "the earth", "the sea", "the sun", "the moon", "the stars", "rain", "the wind", "snow", "grass", "trees", "flowers",
    "birds", "fish", "sheep", "the lion", "the ant", "the dove", "the eagle", "the horse", "the house", "gold",
    "silver", "honey", "milk", "oil", "salt", "seed", "fruit", "the vineyard", "the mountain", "the river", "the rock",
    "sleep", "work", "music", "a friend", "children", "the father", "the mother", "a brother", "the stranger",
    "the poor", "the rich", "the morning", "the night", "time", "life", "the heart", "the tongue", "words",
    "understanding", "righteousness", "patience", "strength", "beauty",
)
BOOKS = ("Ge", "Ruth", "Psa", "Prv", "Eccl", "Mat", "Mark", "Luke", "John", "1Cor", "Phi", "Jas", "1Jn", "Jonah")
WISE = ("Prv", "Eccl", "Jas")
HARSH = re.compile(
    r"\b(kill|slay|slain|slew|smit|smot|sword|blood|whore|harlot|lay with|lie with|knew his wife|womb|breast|naked"
    r"|circumcis|foreskin|concubin|virgin|adulter|fornicat|dung|destroy|death|dead|die|murder|curse|hell|wrath|fury"
    r"|captiv|slave|bondwom|bastard|uncover|devour|plague|leper|crucif|hang|burn|wicked|enem|Jew|Gentile|heathen|fight"
    r"|war|violen|hate|Moab|handmaid|conceiv|seduc|drunk|weapon|lust|abominat|vomit)", re.IGNORECASE)


def gentle(verses: Iterable[Verse]) -> list[Verse]:
    """Return the inoffensive verses of peaceful books that are whole sentences."""
    return [verse for verse in verses if verse.book in BOOKS and verse.text.endswith(".") and "(" not in verse.text
            and 6 <= len(verse.text.split()) <= 45 and not HARSH.search(verse.text)]


def verse_maker(verses: Sequence[Verse]) -> Maker:
    """Return a maker of questions, answered with a verse that contains the topic, or with a wise verse."""
    known = gentle(verses)
    wise = [verse for verse in known if verse.book in WISE]
    found = {topic: [verse for verse in known if re.search(rf"\b{topic.split()[-1]}\b",
                                                           verse.text)] for topic in TOPICS}
    topics = [topic for topic in TOPICS if found[topic]]

    def make(rng: Random) -> Talk:
        if rng.random() < 0.25:
            return asked(put(rng.choice(OPEN), rng), rng.choice(wise).text)
        topic = rng.choice(topics)
        return asked(put(one_of(ABOUT, rng, x=topic, X=capital(topic)), rng), rng.choice(found[topic]).text)
    return make


def passage_maker(verses: Sequence[Verse], length: int = 5) -> Maker:
    """Return a maker of passages: gentle verses of one chapter in order."""
    chapters: dict[tuple[str, int], list[str]] = {}
    for verse in gentle(verses):
        chapters.setdefault((verse.book, verse.chapter), []).append(verse.text)
    passages = [texts[at:at + length] for texts in chapters.values() for at in range(0, len(texts), length)]
    return lambda rng: " ".join(rng.choice(passages))
