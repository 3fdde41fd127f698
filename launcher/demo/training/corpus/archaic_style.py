"""Rewriting of plain sentences in the style of the King James Bible: "And it came to pass that the cow saith moo."

Words and openings of sentences are replaced by rules, without using verses.
"""

import re
from collections.abc import Iterator
from itertools import chain
from random import Random

from launcher.demo.training.corpus.template_expansion import capitalize_first_letter, expand_random_template
from launcher.demo.training.corpus.words import FOODS, OPPOSITES, RHYMES, THING_COLOURS

SENTENCE_END_PATTERN = re.compile(r"(?<=[.!?])\s+|(?<=[.!?]\")\s+(?=[A-Z\"])")
WORD_PATTERN = re.compile(r"[A-Za-z']+")
ARCHAIC_PHRASES = {
    "as a thank you": "for thanks", "to say thank you": "to give thanks", "thank you": "blessed be thou",
    "said hello": "gave greeting", "once upon a time, there was": "in those days there was",
    "once upon a time,": "in those days", "once there was": "there was of old", "long ago,": "in the days of old",
    "a long time ago,": "in the days of old", "there was once": "there was in those days", "you are": "thou art",
    "are you": "art thou", "you have": "thou hast", "you can": "thou canst", "can you": "canst thou",
    "do you": "dost thou", "would you": "wouldest thou", "to you": "unto thee", "for you": "for thee",
    "with you": "with thee", "meet you": "meet thee", "help you": "help thee", "one day,": "on a certain day",
    "one morning,": "on a certain morning", "one evening,": "in the cool of the evening",
    "one night,": "in the night season", "no,": "nay,", "yes,": "yea,", "no money": "neither gold nor silver",
    "i do not know": "I know not",
}
PHRASE_PATTERN = re.compile(rf"(?<![\w'])({'|'.join(sorted(ARCHAIC_PHRASES, key=len, reverse=True))})(?![\w'])",
                            re.IGNORECASE)
TO_PATTERN = re.compile(r"\bto (?=(?:the|an?|him|her|them|his|me|us|my|your|[A-Z]\w+)\b)")
YOU_VERB_PATTERN = re.compile(
    r"\b(Y|y)ou (see|hear|smell|taste|walk|think|bite|touch|kick|talk|clap|chew|like|live|need|want)\b")
ARCHAIC_WORDS = {
    "you": "thou", "your": "thy", "yours": "thine", "says": "saith", "has": "hath", "does": "doth", "lives": "dwelleth",
    "eats": "eateth", "comes": "cometh", "goes": "goeth", "means": "meaneth", "rhymes": "rhymeth", "makes": "maketh",
    "gives": "giveth", "helps": "helpeth", "bakes": "baketh", "grows": "groweth", "teaches": "teacheth",
    "sails": "saileth", "cuts": "cutteth", "puts": "putteth", "catches": "catcheth", "flies": "flieth",
    "drives": "driveth", "brings": "bringeth", "builds": "buildeth", "paints": "painteth", "writes": "writeth",
    "sings": "singeth", "mends": "mendeth", "works": "worketh", "cooks": "cooketh", "looks": "looketh",
    "plants": "planteth", "wears": "weareth", "runs": "runneth", "tells": "telleth", "likes": "loveth",
    "needs": "needeth", "lived": "dwelt", "live": "dwell", "often": "oft", "soon": "anon", "nothing": "nought",
    "between": "betwixt", "nobody": "no man", "everybody": "every man", "asked": "enquired", "angry": "wroth",
    "very": "exceeding", "hello": "peace be unto thee", "goodbye": "go in peace", "boy": "lad", "girl": "damsel",
    "swims": "swimmeth", "jumps": "leapeth", "climbs": "climbeth", "lays": "layeth", "digs": "diggeth",
    "opens": "openeth", "carries": "carrieth", "shows": "sheweth", "hops": "hoppeth", "sleeps": "sleepeth",
    "calls": "calleth", "barks": "barketh", "keeps": "keepeth", "holds": "holdeth", "rings": "ringeth",
    "rules": "ruleth",
}
KNOWN_LOWERCASE_WORDS = frozenset(WORD_PATTERN.findall(" ".join((*ARCHAIC_PHRASES.values(), *ARCHAIC_WORDS.values(),
                                                                 *FOODS, *THING_COLOURS, *chain(*RHYMES), *OPPOSITES))))
# Words that are lower case inside a sentence, even if they begin one; other capitalised words are names.
ALL_LOWERCASE_WORDS = KNOWN_LOWERCASE_WORDS | frozenset(WORD_PATTERN.findall("""
    a an the he she it they we one once then there in on by near under at but so after before from when that this now
    soon slowly step together every everybody long his her their my your you to and since as why what who where how not
    here go good do tell please come let yes no with all make say which is are does did can dear of or up down winter
    spring summer autumn oh had was would shall ask sleep be have try"""))
FIRST_SENTENCE_OPENINGS = ("And it came to pass that {x}", "Now it came to pass in those days that {x}",
        "And behold, {x}", "Verily I say unto thee, {x}", "Hearken, for {x}", "And lo, {x}")
LATER_SENTENCE_OPENINGS = ("And {x}", "And {x}", "And behold, {x}", "And lo, {x}", "Then {x}", "Yea, {x}",
                           "And it was so that {x}")
# Openings of questions, orders and direct speech.
FIRST_SPEECH_OPENINGS, LATER_SPEECH_OPENINGS = ("Verily I say unto thee, {x}", "Hearken: {x}"), ("And {x}", "Yea, {x}")
CLOSING_SENTENCES = ("And it was good.", "And so it was.", "Here endeth the telling.", "Selah.", "", "", "", "")
IMPERATIVE_VERBS = ("Ask", "Come", "Sleep", "Do", "Tell", "Have", "Please", "Be", "Go", "Make", "Try", "Let", "Dear")


def rewrite_as_archaic(text: str, rng: Random) -> str:
    """Rewrite every sentence with a biblical opening and older words; a text that is no sentence is only introduced."""
    if not text.endswith((".", "!", "?", '"')):
        return f"And I said, {text}."
    sentences = [rewrite_sentence(sentence, rng, is_first=not index)
                 for index, sentence in enumerate(split_sentences(text))]
    return " ".join((*sentences, rng.choice(CLOSING_SENTENCES))).strip()


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text. Those of a quotation are kept together, and lines of a poem are joined."""
    pending = ""
    for part in SENTENCE_END_PATTERN.split(re.sub(r"\n+(?!I\b)(\w)", lambda match: f" {match[1].lower()}",
                                                  text).replace("\n", " ")):
        pending = f"{pending} {part}".strip()
        if pending.count('"') % 2 == 0:
            yield pending
            pending = ""
    if pending:
        yield pending


def rewrite_sentence(sentence: str, rng: Random, *, is_first: bool) -> str:
    bare = re.sub(r"^(And|Then|But|So|Now),? (?=\w)", "", sentence)
    if bare.startswith(('"', *IMPERATIVE_VERBS)) or bare.endswith(("?", "!")):
        return expand_random_template(FIRST_SPEECH_OPENINGS if is_first else LATER_SPEECH_OPENINGS, rng,
                                      x=lowercase_sentence_start(replace_modern_words(bare)))
    return expand_random_template(FIRST_SENTENCE_OPENINGS if is_first else LATER_SENTENCE_OPENINGS, rng,
                                  x=lowercase_sentence_start(replace_modern_words(bare)))


def lowercase_sentence_start(sentence: str) -> str:
    """Make the first letter lower case, for use after other words, unless the sentence begins with a name."""
    first = WORD_PATTERN.match(sentence)
    return sentence[0].lower() + sentence[1:] if first and first[0].lower() in ALL_LOWERCASE_WORDS and first[
        0] != "I" else sentence


def replace_modern_words(sentence: str) -> str:
    sentence = PHRASE_PATTERN.sub(lambda match: match_capitalization(match[0], ARCHAIC_PHRASES[match[0].lower()]),
                                  sentence)
    sentence = YOU_VERB_PATTERN.sub(replace_you_and_verb, TO_PATTERN.sub("unto ", sentence))
    return WORD_PATTERN.sub(lambda match: match_capitalization(match[0], ARCHAIC_WORDS.get(match[0].lower(), match[0])),
                            sentence)


def replace_you_and_verb(match: re.Match[str]) -> str:
    return f"{match_capitalization(match[1], 'thou')} {match[2]}{'st' if match[2].endswith('e') else 'est'}"


def match_capitalization(model: str, text: str) -> str:
    """Capitalise `text` if `model` is capitalised."""
    return capitalize_first_letter(text) if model[0].isupper() else text
