"""Grammars of answers in chats, before and behind reasoning."""

import json

import pytest

from router.grammars.output_grammar import ChatGrammar
from router.grammars.parameters import Grammar
from router.text.output_formats import OutputSyntax, ReasoningState

ANSWER = Grammar("regex", "a+")
SYNTAX = OutputSyntax(("(", ")"), thoughts_end="|")


@pytest.mark.parametrize(("state", "thoughts"), [
    (ReasoningState.OPEN, [["until", ")"], ["text", "|"], ["blank"]]),
    (ReasoningState.POSSIBLE, [["optional", ["sequence", ["text", "("], ["until", ")"], ["text", "|"], ["blank"]]]])])
def test_grammar_of_a_chat_begins_behind_the_reasoning(state: ReasoningState, thoughts: list[object]) -> None:
    grammar = ChatGrammar(ANSWER, SYNTAX, "answer:").behind_reasoning(state)
    assert grammar.kind == "output"
    assert json.loads(grammar.source) == ["sequence", *thoughts, ["sequence", ["text", "answer:"], ["regex", "a+"]]]


def test_answer_without_reasoning_is_all_of_the_grammar() -> None:
    assert ChatGrammar(ANSWER, SYNTAX, "answer:").behind_reasoning(ReasoningState.CLOSED) is ANSWER
    assert ChatGrammar(ANSWER, OutputSyntax()).behind_reasoning(ReasoningState.POSSIBLE) is ANSWER
