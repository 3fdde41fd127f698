"""Grammars of requests, resolved to resources: checks whether grammars are served, has them compiled and numbered."""

from collections.abc import Callable

from router.config import RouterConfig
from router.errors import InvalidRequest
from router.grammars.compiler_client import GrammarCompiler
from router.grammars.parameters import Grammar
from router.model_info import ModelInfo
from router.request import LoadableResource
from router.text.tokenizer import Tokenizer

GRAMMARS_NOT_SERVED = "this model is served without grammars"

ResourceLookup = Callable[[str, str], LoadableResource]  # returns the resource of a kind and a source


class GrammarResolver:
    """Resolves the grammar of a request to the resource that the shards load: checks that grammars are served, has it
    compiled, and numbers it. `close` ends the compiler.
    """

    def __init__(self, config: RouterConfig, model_info: ModelInfo, tokenizer: Tokenizer,
                 get_resource: ResourceLookup | None) -> None:
        self._why_unsupported = (why_unsupported(config, model_info, tokenizer)
                                 or ("" if get_resource else GRAMMARS_NOT_SERVED))
        self._get_resource = get_resource
        self._compiler = GrammarCompiler(lambda: tokenizer.path_or_content)

    async def resolve_grammar(self, parameter: str, grammar: Grammar) -> LoadableResource:
        """Return the resource of a grammar; `parameter` is its name in the request.

        Raises InvalidRequest or Overloaded.
        """
        if self._why_unsupported:
            raise InvalidRequest(f"`{parameter}` is given, but {self._why_unsupported}; leave it out")
        compiled = await self._compiler.compile(grammar)
        assert self._get_resource is not None
        return self._get_resource("grammar", compiled)

    def close(self) -> None:
        self._compiler.close()


def why_unsupported(config: RouterConfig, model_info: ModelInfo, tokenizer: Tokenizer) -> str:
    """Return why grammars are not served, or an empty string."""
    if config.disable_grammar_support:
        return "grammars are switched off (--disable-grammar-support)"
    if not model_info.grammars:
        return GRAMMARS_NOT_SERVED
    if not any(token < model_info.vocabulary_size for token in tokenizer.end_tokens):
        return "this model has no end token, so no answer could end where its grammar does"
    return ""
