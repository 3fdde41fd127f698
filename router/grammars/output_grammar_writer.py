"""Writer of grammars that are made of others. Such a grammar is a tree of nodes, whose texts may hold special tokens:

    ["text", TEXT]                      this text
    ["until", TEXT]                     any text up to the first such text, which is part of it
    ["blank"]                           whitespace, or none
    ["sequence", NODE, ...]  ["choice", NODE, ...]  ["optional", NODE]
    ["repeat", NODE, SEPARATOR]         the node once or more often, with the other node between
    ["json_schema" | "regex" | "grammar" | "output", SOURCE]   a grammar of its own
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Node = list[Any]
BLANK_NODE: Node = ["blank"]
BLANK_PATTERN = r"/[ \n]{1,4}/"


def quote_for_lark(text: str) -> str:
    """Return a text as a string of Lark: as in JSON, but control characters behind ASCII need an escape, too."""
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


class OutputGrammarWriter:
    """Writer of a tree of nodes in the form that shards load. A text that names a special token means that token, and
    no other text matches it. `grammar_readers` return a grammar's form, by its kind. Raises ValueError."""

    def __init__(self, special_tokens: Mapping[str, int], grammar_readers: Mapping[str, Callable[[str], str]]) -> None:
        self._special_tokens = special_tokens
        names = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, names)) or r"\Z.")
        self._grammar_readers = grammar_readers
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []

    def to_compiled_json(self, node: Node) -> str:
        rules = [f"start: {self._write(node)}", *self._rules]
        return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *self._grammars]}, ensure_ascii=False)

    def _write(self, node: Node) -> str:
        """Return the expression of Lark for a node."""
        match node:
            case ["text", text]:
                expression = " ".join(map(self._write_token, self._split(text))) or '""'
            case ["until", text]:
                expression = self._write_until(text)
            case ["blank"]:
                expression = f"{self._add_rule('BLANK', '', BLANK_PATTERN)}?"
            case ["sequence", *nodes]:
                expression = " ".join(map(self._write, nodes))
            case ["choice", *nodes]:
                expression = f"({' | '.join(map(self._write, nodes))})"
            case ["optional", inner]:
                expression = f"({self._write(inner)})?"
            case ["repeat", inner, separator]:
                name = self._add_rule("item", "", self._write(inner))
                expression = f"{name} ({self._write(separator)} {name})*"
            case ["output", source]:
                expression = self._write(json.loads(source))
            case [kind, source]:
                expression = self._add_grammar(self._grammar_readers[kind](source))
            case _:
                raise ValueError(f"{node!r} is no node of a grammar")
        return expression

    def _split(self, text: str) -> list[str]:
        """Return the special tokens of a text and what stands between them."""
        return [piece for piece in re.split(f"({self._special_pattern.pattern})", text) if piece]

    def _write_token(self, piece: str) -> str:
        return f"<[{self._special_tokens[piece]}]>" if piece in self._special_tokens else quote_for_lark(piece)

    def _write_until(self, text: str) -> str:
        """Write any text up to one that ends it. With a special token in it, that token ends it; what looks like it as
        text is left out, since it would look like the end to a reader of the text."""
        pieces = self._split(text)
        place = next((place for place, piece in enumerate(pieces) if piece in self._special_tokens), None)
        if place is None:
            return self._add_rule("rest", f"[suffix={quote_for_lark(text)}]", "/(?s:.*)/")
        free_text = f"/(?s:.*)/ & ~(/(?s:.*)/ {quote_for_lark(pieces[place])} /(?s:.*)/)"
        return " ".join([self._add_rule("TEXT", "", free_text), *map(self._write_token, pieces[place:])])

    def _add_rule(self, name: str, options: str, expression: str) -> str:
        name = f"{name}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {expression}")
        return name

    def _add_grammar(self, source: str) -> str:
        """Add a grammar in the form that shards load, which is text of Lark or JSON with a single grammar."""
        name = f"grammar_{len(self._grammars)}"
        parts = json.loads(source)["grammars"][0] if source.startswith("{") else {"lark_grammar": source}
        self._grammars.append({**parts, "name": name})
        return f"@{name}"
