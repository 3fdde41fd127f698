"""Rewriting of answers in another style: a pirate's, in capitals, as JSON, or in the style of the King James Bible."""

import json
import re
from collections.abc import Callable, Sequence
from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker, Message, make_one_turn_conversation
from launcher.demo.training.corpus.archaic_style import rewrite_as_archaic
from launcher.demo.training.corpus.template_expansion import capitalize_first_letter, vary_question

AnswerRewriter = Callable[[str, str, Random], str]  # rewrites an answer, given the question

PIRATE_WORDS = {
    "my": "me", "you": "ye", "your": "yer", "yours": "yers", "you're": "ye be", "is": "be", "are": "be", "am": "be",
    "was": "were", "of": "o'", "and": "an'", "the": "th'", "hello": "ahoy", "hi": "ahoy", "yes": "aye",
    "friend": "matey", "friends": "mateys", "girl": "lass", "boy": "lad", "little": "wee", "small": "wee",
    "food": "grub", "money": "doubloons", "goodbye": "farewell", "house": "cabin", "very": "mighty", "to": "t'",
    "for": "fer", "them": "'em", "happy": "jolly", "man": "buccaneer", "woman": "lass", "there": "thar",
    "people": "landlubbers", "never": "ne'er", "over": "o'er", "stop": "avast", "sure": "aye", "good": "fine",
    "drink": "grog", "soup": "stew", "gift": "treasure", "child": "wee lad", "children": "wee mateys",
    "before": "afore", "between": "betwixt",
}
PIRATE_OPENINGS = ("Arr! {x}", "Arr, matey! {x}", "Ahoy! {x}", "Yo ho ho! {x}", "Shiver me timbers! {x}",
                   "Ho, matey! {x}", "Avast! {x}")
PIRATE_ENDINGS = (" Arr!", " Yo ho!", " Savvy?", " By me beard!", *[""] * 10)
CONVERSATIONAL_START_PATTERN = re.compile(r"(hi|hello|hey|and|what about|how about)\b", re.IGNORECASE)
WORD_PATTERN = re.compile(r"[A-Za-z']+")
OPEN_REQUESTS = ("Say something.", "Write something.", "Tell me something.", "Write a short text.", "Begin.",
                 "Write a few sentences.")


def rewrite_as_pirate(text: str, rng: Random) -> str:
    rewritten = WORD_PATTERN.sub(lambda match: translate_word_to_pirate(match[0]), re.sub(r"\bNo,", "Nay,", text))
    first = "Arr! {x}" if rewritten.startswith("Ahoy") else rng.choice(PIRATE_OPENINGS)
    return f"{first.format(x=rewritten)}{rng.choice(PIRATE_ENDINGS)}"


def translate_word_to_pirate(word: str) -> str:
    """Translate a word into the pirate's, keeping its capital letter; the ending -ing loses its g."""
    lowercase_word = word.lower()
    clipped = f"{lowercase_word[:-1]}'" if lowercase_word.endswith("ing") and not lowercase_word.endswith(
        "thing") and len(lowercase_word) > 6 else lowercase_word
    pirate_word = PIRATE_WORDS.get(lowercase_word, clipped)
    if pirate_word == lowercase_word:
        return word
    return pirate_word[0].upper() + pirate_word[1:] if word[0].isupper() else pirate_word


def rewrite_in_capitals(text: str) -> str:
    """Convert a text to capitals, with exclamation marks instead of full stops."""
    return re.sub(r"\.(?=[\s\"]|$)", "!", text.upper())


def rewrite_as_json(question: str, answer: str) -> str:
    return json.dumps({"question": question, "answer": answer})


def rewrite_as_king_james_bible(question: str, answer: str, rng: Random) -> str:
    """Rewrite an answer in the style of the King James Bible, now and then with the question before it."""
    rewritten = rewrite_as_archaic(answer, rng)
    if question.endswith("?") and not CONVERSATIONAL_START_PATTERN.match(question) and rng.random() < 0.25:
        return (f"And the man asked, saying, {capitalize_first_letter(question)} And it was answered unto him, saying, "
                f"{rewritten}")
    return rewritten


REWRITERS_BY_STYLE: dict[str, AnswerRewriter] = {
    "pirate": lambda _, answer, rng: rewrite_as_pirate(answer, rng),
    "json": lambda question, answer, _: rewrite_as_json(question, answer),
    "shout": lambda _, answer, __: rewrite_in_capitals(answer),
    "kjv": rewrite_as_king_james_bible,
}


def make_restyled_document_maker(make_document: DocumentMaker, rewrite: AnswerRewriter) -> DocumentMaker:
    """Return a maker whose answers are rewritten in a style; tool calls are unchanged."""
    def make_restyled_document(rng: Random) -> Conversation | str:
        made = make_document(rng)
        if isinstance(made, str):
            question = vary_question(rng.choice(OPEN_REQUESTS), rng)
            return make_one_turn_conversation(question, rewrite(question, made, rng))
        return Conversation(rewrite_answers(made.messages, rewrite, rng), made.tools, made.has_reasoning)
    return make_restyled_document


def rewrite_answers(messages: Sequence[Message], rewrite: AnswerRewriter, rng: Random) -> list[Message]:
    question, rewritten = "", []
    for message in messages:
        question = message["content"] if message["role"] == "user" else question
        answers = message["role"] == "assistant" and message["content"]
        rewritten.append(message | {"content": rewrite_final_answer(question, message["content"], rewrite,
                                                                    rng)} if answers else message)
    return rewritten


def rewrite_final_answer(question: str, answer: str, rewrite: AnswerRewriter, rng: Random) -> str:
    """Rewrite an answer in a style, except for its reasoning."""
    reasoning, mark, final_answer = answer.rpartition("</think>\n")
    return f"{reasoning}{mark}{rewrite(question, final_answer, rng)}"
