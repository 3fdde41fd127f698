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


def make_grammar_node(grammar: Grammar) -> Node:
    return [grammar.kind, grammar.source]


@dataclass(frozen=True, slots=True)
class ChatGrammar:
    """Grammar of an answer in a chat, which reasoning may precede: the rendered prompt decides (`to_output_grammar`).
    `opening` is the text before the answer, unless the prompt has begun the answer. `calls` may come instead of it."""

    answer: Grammar
    syntax: OutputSyntax
    opening: str = ""
    calls: Grammar | None = None

    def to_output_grammar(self, state: ReasoningState) -> Grammar:
        has_thoughts = state is not ReasoningState.CLOSED and self.syntax.thoughts is not None
        if not has_thoughts and self.calls is None:
            return self.answer
        node: Node = ["sequence", ["text", self.opening if has_thoughts else ""], make_grammar_node(self.answer)]
        if self.calls is not None:
            node = ["choice", make_grammar_node(self.calls), node]
        if has_thoughts:
            node = ["sequence", *self._make_reasoning_nodes(state), node]
        faults = [grammar.reference_fault for grammar in (self.answer, self.calls) if grammar is not None]
        return make_output_grammar(node, next(filter(None, faults), ""))

    def _make_reasoning_nodes(self, state: ReasoningState) -> list[Node]:
        assert self.syntax.thoughts is not None, "the model sets reasoning apart"
        thoughts_opening, closing = self.syntax.thoughts
        rest: list[Node] = [["until", closing], ["text", self.syntax.thoughts_end], BLANK_NODE]
        return rest if state is ReasoningState.OPEN else [["optional", ["sequence", ["text", thoughts_opening], *rest]]]
