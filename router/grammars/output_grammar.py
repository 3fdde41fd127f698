"""Grammars of the answers in chats, made of others: reasoning, then an answer or tool calls. As a `Grammar` such a tree
of nodes (output_grammar_writer.py) is of the kind `output`, with the tree as JSON."""

import json
from dataclasses import dataclass

from router.grammars.output_grammar_writer import BLANK_NODE, Node
from router.grammars.parameters import MAX_CHARACTERS, Grammar
from router.text.output_formats import OutputSyntax, ReasoningState
from router.text.prompt_encoder import check_text


def make_output_grammar(node: Node, reference_fault: str = "") -> Grammar:
    """Return the grammar of a tree; `reference_fault` is that of its schemas. Raises InvalidRequest for one that is too
    long."""
    source = json.dumps(node, ensure_ascii=False)
    check_text("tools", source, 2 * MAX_CHARACTERS)  # only many functions make it longer than each part may be
    return Grammar("output", source, reference_fault)


def make_node(grammar: Grammar) -> Node:
    return [grammar.kind, grammar.source]


@dataclass(frozen=True, slots=True)
class ChatGrammar:
    """Grammar of an answer in a chat, which reasoning may precede: the rendered prompt decides (`behind_reasoning`).
    `opening` is the text before the answer, unless the prompt has begun the answer."""

    answer: Grammar
    syntax: OutputSyntax
    opening: str = ""

    def behind_reasoning(self, state: ReasoningState) -> Grammar:
        if state is ReasoningState.CLOSED or self.syntax.thoughts is None:
            return self.answer
        thoughts_opening, closing = self.syntax.thoughts
        rest: list[Node] = [["until", closing], ["text", self.syntax.thoughts_end], BLANK_NODE]
        thoughts = ([*rest] if state is ReasoningState.OPEN
                    else [["optional", ["sequence", ["text", thoughts_opening], *rest]]])
        return make_output_grammar(["sequence", *thoughts, ["text", self.opening], make_node(self.answer)],
                                   self.answer.reference_fault)
