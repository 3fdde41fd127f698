"""Conversations from the Bible: questions that are answered with a verse, and passages as plain text.

The topic of a verse is determined only by its words.
"""

import re
from collections.abc import Iterable, Sequence
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker, make_one_turn_conversation
from launcher.demo.training.corpus.sources.scripture import BibleVerse
from launcher.demo.training.corpus.template_expansion import (
    capitalize_first_letter,
    expand_random_template,
    vary_question,
)

TOPIC_QUESTIONS = ("Tell me about {x}.", "What does the Bible say about {x}?", "Speak to me of {x}.",
                   "Say something about {x}.", "What about {x}?", "What do you know about {x}?",
                   "Give me a verse about {x}.", "A verse about {x}, please.", "Teach me about {x}.", "{X}?",
                   "What do you think of {x}?", "Where can I find {x}?", "Tell me a story about {x}.",
                   "Write something about {x}.")
OPEN_QUESTIONS = ("Say something.", "Speak.", "Give me a verse.", "Tell me something wise.", "What shall I do?",
                  "Read to me.", "Give me advice.", "Teach me.", "What is the truth?", "Write something beautiful.",
                  "I am listening.", "How should I live?", "A verse, please.")
TOPICS = (
    "love", "light", "wisdom", "water", "bread", "fire", "peace", "joy", "hope", "faith", "truth", "mercy", "heaven",
    "the earth", "the sea", "the sun", "the moon", "the stars", "rain", "the wind", "snow", "grass", "trees", "flowers",
    "birds", "fish", "sheep", "the lion", "the ant", "the dove", "the eagle", "the horse", "the house", "gold",
    "silver", "honey", "milk", "oil", "salt", "seed", "fruit", "the vineyard", "the mountain", "the river", "the rock",
    "sleep", "work", "music", "a friend", "children", "the father", "the mother", "a brother", "the stranger",
    "the poor", "the rich", "the morning", "the night", "time", "life", "the heart", "the tongue", "words",
    "understanding", "righteousness", "patience", "strength", "beauty",
)
PEACEFUL_BOOKS = ("Ge", "Ruth", "Psa", "Prv", "Eccl", "Mat", "Mark", "Luke", "John", "1Cor", "Phi", "Jas", "1Jn",
                  "Jonah")
WISDOM_BOOKS = ("Prv", "Eccl", "Jas")
HARSH_WORDS_PATTERN = re.compile(
    r"\b(kill|slay|slain|slew|smit|smot|sword|blood|whore|harlot|lay with|lie with|knew his wife|womb|breast|naked"
    r"|circumcis|foreskin|concubin|virgin|adulter|fornicat|dung|destroy|death|dead|die|murder|curse|hell|wrath|fury"
    r"|captiv|slave|bondwom|bastard|uncover|devour|plague|leper|crucif|hang|burn|wicked|enem|Jew|Gentile|heathen|fight"
    r"|war|violen|hate|Moab|handmaid|conceiv|seduc|drunk|weapon|lust|abominat|vomit)", re.IGNORECASE)


def select_gentle_verses(verses: Iterable[BibleVerse]) -> list[BibleVerse]:
    """Return the inoffensive verses of peaceful books that are whole sentences."""
    return [verse for verse in verses if verse.book in PEACEFUL_BOOKS and verse.text.endswith(".")
            and "(" not in verse.text and 6 <= len(verse.text.split()) <= 45
            and not HARSH_WORDS_PATTERN.search(verse.text)]


def make_verse_question_maker(verses: Sequence[BibleVerse]) -> DocumentMaker:
    """Return a maker of questions, answered with a verse that contains the topic, or with a wise verse."""
    gentle_verses = select_gentle_verses(verses)
    wise_verses = [verse for verse in gentle_verses if verse.book in WISDOM_BOOKS]
    verses_by_topic = {topic: [verse for verse in gentle_verses if re.search(rf"\b{topic.split()[-1]}\b",
                                                                             verse.text)] for topic in TOPICS}
    topics = [topic for topic in TOPICS if verses_by_topic[topic]]

    def make_verse_question(rng: Random) -> Conversation:
        if rng.random() < 0.25:
            return make_one_turn_conversation(vary_question(rng.choice(OPEN_QUESTIONS), rng),
                                              rng.choice(wise_verses).text)
        topic = rng.choice(topics)
        return make_one_turn_conversation(vary_question(expand_random_template(TOPIC_QUESTIONS, rng, x=topic,
                                                                               X=capitalize_first_letter(topic)), rng),
                                          rng.choice(verses_by_topic[topic]).text)
    return make_verse_question


def make_passage_maker(verses: Sequence[BibleVerse], num_verses: int = 5) -> DocumentMaker:
    """Return a maker of passages: gentle verses of one chapter in order."""
    chapters: dict[tuple[str, int], list[str]] = {}
    for verse in select_gentle_verses(verses):
        chapters.setdefault((verse.book, verse.chapter), []).append(verse.text)
    passages = [texts[at:at + num_verses] for texts in chapters.values() for at in range(0, len(texts), num_verses)]
    return lambda rng: " ".join(rng.choice(passages))
