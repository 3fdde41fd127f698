"""Grammars of requests, resolved to resources: checks whether grammars are served, has them compiled and numbered."""

from collections.abc import Callable

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.compiler_client import GrammarCompiler
from router.grammars.schema import Grammar
from router.request import Resource
from router.scheduler.plan import ModelFacts
from router.text.tokenizer import Tokenizer

NOT_SERVED = "this model is served without grammars"

Number = Callable[[str, str], Resource]  # returns the resource of a kind and a source


class Grammars:
    """Resolver of grammars. `close` ends the compiler."""

    def __init__(self, config: RouterConfig, facts: ModelFacts, tokenizer: Tokenizer, number: Number | None) -> None:
        self._why_not = why_not(config, facts, tokenizer) or ("" if number else NOT_SERVED)
        self._number = number
        self._compiler = GrammarCompiler(lambda: tokenizer.origin)

    async def need(self, name: str, grammar: Grammar | None) -> Resource | None:
        """Return the resource of the grammar given in the parameter `name`. Raises InvalidRequest or Overloaded."""
        if grammar is None:
            return None
        if self._why_not:
            raise InvalidRequest(f"`{name}` is given, but {self._why_not}; leave it out")
        compiled = await self._compiler.compile(grammar)
        assert self._number is not None
        return self._number("grammar", compiled)

    def close(self) -> None:
        self._compiler.close()


def why_not(config: RouterConfig, facts: ModelFacts, tokenizer: Tokenizer) -> str:
    """Return why grammars are not served, or an empty string."""
    if config.disable_grammar_support:
        return "grammars are switched off (--disable-grammar-support)"
    if not facts.grammars:
        return NOT_SERVED
    if not any(token < facts.vocabulary_size for token in tokenizer.end_tokens):
        return "this model has no end token, so no answer could end where its grammar does"
    return ""
