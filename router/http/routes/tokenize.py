"""Routes of the tokenizer: `/tokenize`, `/chat_tokenize`, `/detokenize` and `/tokenizer_info`. `/tokenize` answers as
text-generation-inference does, with offsets that count bytes, and to the fields of vLLM as vLLM does. The JSON of a
token is ten to sixty times as large as its text, so it is rendered in a thread and sent in pieces."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from typing import Annotated, Any

from aiohttp import web
from pydantic import FailFast

from router.http.openai.requests import CHAT_PARAMETER_NAMES, ChatRequest
from router.http.tgi.routes import GenerateRequest
from router.http.transport.auth import CLIENT
from router.http.transport.body import (
    BodyModel,
    LenientBodyModel,
    UInt32,
    json_response,
    read_body,
    run_in_thread_if_long_body,
    send_json,
)
from router.http.transport.request_context_and_middleware import ignored_fields_headers
from router.http.transport.services import ServiceRoutes, Services
from router.text.chat_template import ChatTemplate, Conversation
from router.text.prompt_encoder import DialectParameterNames, TokenizedText
from router.text.tokenizer import Tokenizer
from router.validation import bounds

PARAMETER_NAMES = DialectParameterNames(truncate="")  # prompts are never truncated
PROMPT_PARAMETER_NAMES = DialectParameterNames(prompt="prompt", truncate="")
TOKENS_PER_PIECE = 1024  # tokens; encoding a long text in one call would hold the GIL all the while

DEFAULT_TOKENIZER_CLASS = "PreTrainedTokenizerFast"  # of transformers, which reads every tokenizer.json
PATH_FIELDS = frozenset({"name_or_path", "_name_or_path"})  # beside those that end with `_file`

TokenJson = dict[str, Any]


class TokenizeFormatFields(BodyModel):
    """The fields that decide in whose format `/tokenize` is asked."""

    inputs: Any = None
    prompt: Any = None
    messages: Any = None


class TokenizePromptRequest(LenientBodyModel):
    """Body of vLLM's `/tokenize` for a text."""

    prompt: Annotated[str, bounds.NON_EMPTY_TEXT]
    add_special_tokens: bool | None = None
    model: str | None = None


class DetokenizeRequest(LenientBodyModel):
    """Body of vLLM's `/detokenize`."""

    tokens: Annotated[list[UInt32], FailFast()]
    model: str | None = None


class TokenizeRoutes(ServiceRoutes):
    """Handlers of `/tokenize`, `/chat_tokenize`, `/detokenize` and `/tokenizer_info`."""

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/tokenize", self.tokenize), web.post("/chat_tokenize", self.chat_tokenize),
                web.post("/detokenize", self.detokenize), web.get("/tokenizer_info", self.tokenizer_info)]

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        fields = await read_body(request, TokenizeFormatFields)
        if fields.inputs is None and fields.prompt is not None:
            prompt_request = await read_body(request, TokenizePromptRequest)
            return await respond_with_tokens(
                self._services, request, prompt_request.prompt, PROMPT_PARAMETER_NAMES, self._render_token_ids,
                add_special_tokens=prompt_request.add_special_tokens is not False)
        if fields.inputs is None and fields.messages is not None:
            chat_request = await self._read_chat(request)
            if self._services.config.compat == "none":
                chat_request.check_roles(self._services.validator.chat_template)
            return await self._respond_to_chat(request, chat_request, self._render_token_ids)
        generate_request = await read_body(request, GenerateRequest)
        return await respond_with_tokens(self._services, request, generate_request.inputs, PARAMETER_NAMES,
                                         render_token_list)

    async def _read_chat(self, request: web.Request) -> ChatRequest:
        """Return the chat of the body. Fields that would change its prompt, and are not served, are refused as in a
        chat, unless another server is imitated, which ignores them."""
        chat_request = await read_body(request, ChatRequest)
        if self._services.config.compat == "none":
            chat_request.check_refused_fields()
        return chat_request

    def _render_token_ids(self, encoded: TokenizedText) -> list[bytes]:
        return [json.dumps({"count": len(encoded.token_ids), "tokens": [*encoded.token_ids], "token_strs": None,
                            "max_model_len": self._services.validator.limits.max_total_tokens}).encode()]

    async def detokenize(self, request: web.Request) -> web.Response:
        detokenize_request = await read_body(request, DetokenizeRequest)
        text = await self._services.validator.prompt_encoder.detokenize("tokens", tuple(detokenize_request.tokens),
                                                                                request[CLIENT].tenant)
        return json_response({"prompt": text}, ignored_fields_headers(request))

    async def tokenizer_info(self, _: web.Request) -> web.Response:
        return json_response(make_tokenizer_info(self._services.validator.tokenizer,
                                                 self._services.validator.chat_template))

    async def chat_tokenize(self, request: web.Request) -> web.StreamResponse:
        return await self._respond_to_chat(request, await self._read_chat(request), render_chat_tokens)

    async def _respond_to_chat(self, request: web.Request, chat_request: ChatRequest,
                               render_pieces: Callable[[TokenizedText], list[bytes]]) -> web.StreamResponse:
        conversation = await run_in_thread_if_long_body(request, lambda: chat_request.conversation)
        return await respond_with_tokens(self._services, request, conversation, CHAT_PARAMETER_NAMES, render_pieces)


def make_tokenizer_info(tokenizer: Tokenizer, template: ChatTemplate | None) -> dict[str, Any]:
    """Return vLLM's JSON of a tokenizer: tokenizer_config.json without paths of the server, with special tokens as
    texts, and with the chat template that is in use."""
    info = {name: value for name, value in tokenizer.config.items()
            if name not in PATH_FIELDS and not name.endswith("_file")}
    if not info.get("eos_token") and tokenizer.end_tokens:
        info["eos_token"] = tokenizer.decode_token(min(tokenizer.end_tokens))
    return {"tokenizer_class": DEFAULT_TOKENIZER_CLASS, **info,
            "chat_template": None if template is None else template.source}


async def respond_with_tokens(services: Services, request: web.Request, text: str | Conversation,
                              parameter_names: DialectParameterNames,
                              render_pieces: Callable[[TokenizedText], list[bytes]], *,
                              add_special_tokens: bool = True) -> web.StreamResponse:
    """Tokenize the text and send what `render_pieces` makes of it. Raises InvalidRequest if the model cannot take so
    many tokens."""
    pieces = await services.validator.prompt_encoder.tokenize_and_call(
        text, parameter_names, render_pieces, tenant=request[CLIENT].tenant, add_special_tokens=add_special_tokens)
    return await send_json(request, pieces, sum(map(len, pieces)), services.config.slow_client_timeout,
                           headers=ignored_fields_headers(request))


def render_token_list(encoded: TokenizedText) -> list[bytes]:
    text = encoded.text
    offsets = (range(len(text) + 1) if text.isascii()  # in bytes, of each character and of the end
               else list(accumulate((len(character.encode()) for character in text), initial=0)))
    return [*json_list_pieces({"id": token, "text": text[start:stop], "start": offsets[start], "stop": offsets[stop]}
                              for token, (start, stop) in zip(encoded.token_ids, encoded.offsets, strict=True))]


def render_chat_tokens(encoded: TokenizedText) -> list[bytes]:
    return [b'{"tokenize_response": ', *render_token_list(encoded),
            b', "templated_text": ', json.dumps(encoded.text).encode(), b"}"]


def json_list_pieces(objects: Iterable[TokenJson]) -> Iterator[bytes]:
    """Yield the JSON of a list, TOKENS_PER_PIECE items at a time."""
    items, opening = iter(objects), "["
    while piece := [*islice(items, TOKENS_PER_PIECE)]:
        yield (opening + json.dumps(piece)[1:-1]).encode()
        opening = ", "
    yield b"[]" if opening == "[" else b"]"
