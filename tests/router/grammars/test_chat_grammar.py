"""Grammars of answers in chats, before and behind reasoning."""

import json

import pytest

from router.grammars.chat_grammar import ChatGrammar
from router.grammars.parameters import Grammar
from router.text.output_formats import OutputSyntax, ReasoningState

ANSWER = Grammar("regex", "a+")
SYNTAX = OutputSyntax(("(", ")"), thoughts_end="|")


@pytest.mark.parametrize(("state", "thoughts"), [
    (ReasoningState.OPEN, [["until", ")"], ["text", "|"], ["blank"]]),
    (ReasoningState.POSSIBLE, [["optional", ["sequence", ["text", "("], ["until", ")"], ["text", "|"], ["blank"]]]])])
def test_grammar_of_a_chat_begins_behind_the_reasoning(state: ReasoningState, thoughts: list[object]) -> None:
    grammar = ChatGrammar(ANSWER, SYNTAX, "answer:").to_output_grammar(state)
    assert grammar.kind == "output"
    assert json.loads(grammar.source) == ["sequence", *thoughts, ["sequence", ["text", "answer:"], ["regex", "a+"]]]


def test_answer_without_reasoning_is_all_of_the_grammar() -> None:
    assert ChatGrammar(ANSWER, SYNTAX, "answer:").to_output_grammar(ReasoningState.CLOSED) is ANSWER
    assert ChatGrammar(ANSWER, OutputSyntax()).to_output_grammar(ReasoningState.POSSIBLE) is ANSWER
