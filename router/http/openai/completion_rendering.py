"""Rendering of completions as OpenAI's JSON, whole or as a stream, with the prompt in front (`echo`) and logprobs."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quoted

from router.engine.output_stream import FinishedEvent, PromptLogprobsEvent, RequestStream, StreamEvent, TokenEvent
from router.http.openai.rendering import (
    ChoiceStreamRenderer,
    ResponseMetadata,
    format_usage,
    get_finish_reason,
    output_usage_json,
    token_ids_json,
)
from router.http.openai.stop_string_removal import trim_stop_string
from router.http.tgi.rendering import float32_json
from router.http.transport.body import ListJson
from router.http.transport.services import GenerationOutput
from router.request import FinishReason
from router.text.tokenizer import Tokenizer

COMPLETION_TYPE = "text_completion"


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that its completion begins with. `text` is what the client sent, or that of its token ids."""

    token_ids: Sequence[int]
    text: str


@dataclass(frozen=True, slots=True)
class CompletionOutputOptions:
    """Optional parts of one completion."""

    tokenizer: Tokenizer
    has_logprobs: bool
    prompt: EchoedPrompt | None  # in front of the text
    has_token_ids: bool = False  # of a whole response


def drop_generated_output(event: FinishedEvent) -> FinishedEvent:
    """Return the end of a completion that has nothing but its prompt."""
    return replace(event, text="", num_tokens=0, finish_reason=FinishReason.LENGTH, is_stopped=False)


class CompletionLogprobsBuilder:
    """Builds the object `logprobs` of a completion, or of a chunk: tokens, their logprobs, the best candidates of each
    with the token itself among them, and the number of characters of the text before each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_characters = 0  # of the text so far
        self._rows: list[tuple[str, ...]] = []  # JSON of each token, or of several, in the object's four lists

    def add_prompt(self, prompt: EchoedPrompt, logprobs: Sequence[float | None],
                   top_logprobs: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Add the prompt's tokens. `logprobs` has None for the first, of which `top_logprobs` has nothing."""
        detokenizer, decode = self._tokenizer.create_detokenizer(), self._tokenizer.decode_token
        special_tokens = self._tokenizer.special_tokens
        for index, (token, logprob) in enumerate(zip(prompt.token_ids, logprobs, strict=True)):
            piece = detokenizer.step(token)
            name = decode(token) if token in special_tokens else piece
            tops = top_logprobs[index - 1] if index and top_logprobs else ()
            self._add(token, name, logprob, ((top, decode(top), top_logprob) for top, top_logprob in tops))
            self._num_characters += len(piece)
        self._num_characters = len(prompt.text)
        # one row with the lists of all, so that it is quickly taken
        self._rows = [tuple(map(",".join, zip(*self._rows, strict=True)))] if self._rows else []

    def add_token(self, token: TokenEvent) -> None:
        self._add(token.id, token.text, token.logprob, ((top.id, top.text, top.logprob) for top in token.top_tokens))
        self._num_characters += 0 if token.special else len(token.text)

    def _add(self, token: int, name: str, logprob: float | None, tops: Iterable[tuple[int, str, float]]) -> None:
        tops_json = "null"
        if logprob is not None:
            # Different tokens may have the same text, such as parts of a character.
            names = {name: logprob}
            for top, top_name, top_logprob in tops:
                if top != token:
                    names[f"token_id:{top}" if top_name in names else top_name] = top_logprob
            tops_json = f'{{{",".join(f"{quoted(text)}:{float32_json(value)}" for text, value in names.items())}}}'
        self._rows.append((quoted(name), "null" if logprob is None else float32_json(logprob), tops_json,
                           str(self._num_characters)))

    def take_json(self) -> str:
        """Return the object for the tokens that were added since the last call."""
        tokens, logprobs, tops, offsets = map(",".join, zip(*self._rows, strict=True)) if self._rows else [""] * 4
        self._rows = []
        return (f'{{"tokens":[{tokens}],"token_logprobs":[{logprobs}],"top_logprobs":[{tops}],'
                f'"text_offset":[{offsets}]}}')


def completion_json(metadata: ResponseMetadata, outputs: Sequence[GenerationOutput], num_choices: int,
                    choices: Sequence[str]) -> ListJson:
    """Return the response to one or several prompts, each with `num_choices` outputs, with the JSON of the choices."""
    return ListJson(f'{{{metadata.to_json_fields(COMPLETION_TYPE)},"choices":[', choices,
                    f'],"usage":{output_usage_json(metadata, outputs, num_choices)}}}')


def output_choice_json(metadata: ResponseMetadata, index: int, output: GenerationOutput,
                       stop_strings_to_remove: Sequence[str], details: CompletionOutputOptions | None) -> str:
    """Render one choice of a whole response."""
    text, logprobs_json, ids_fields = trim_stop_string(output.final_event, stop_strings_to_remove), "null", ""
    if details is not None:
        if details.has_token_ids:
            ids_fields = (f',"prompt_token_ids":{token_ids_json(output.validated_request.request.prompt)},'
                          f'"token_ids":{token_ids_json(token.id for token in output.tokens)}')
        text = text if details.prompt is None else details.prompt.text + text
        logprobs_json = output_logprobs_json(output, details) if details.has_logprobs else "null"
    reason = metadata.dialect.finish_reasons[get_finish_reason(output.final_event, metadata.dialect)]
    return completion_choice_json(index, text, reason, logprobs_json, ids_fields)


def output_logprobs_json(output: GenerationOutput, details: CompletionOutputOptions) -> str:
    logprobs = CompletionLogprobsBuilder(details.tokenizer)
    if details.prompt is not None:
        logprobs.add_prompt(details.prompt, output.prompt_logprobs, output.prompt_top_logprobs)
    for token in output.tokens:
        logprobs.add_token(token)
    return logprobs.take_json()


def completion_choice_json(index: int, text: str, finish_reason: str, logprobs_json: str = "null",
                           other_fields: str = "") -> str:
    return (f'{{"index":{index},"text":{quoted(text)},"logprobs":{logprobs_json},"finish_reason":"{finish_reason}"'
            f'{other_fields}}}')


class OpenAICompletionStreamRenderer(ChoiceStreamRenderer):
    """Renderer of one completion in a stream."""

    has_prompt_ids_in_choice = True

    __slots__ = ("_chunk_prefix", "_dialect")

    def __init__(self, metadata: ResponseMetadata, index: int, num_prompt_tokens: int,
                 stop_strings_to_remove: Sequence[str] = ()) -> None:
        super().__init__(metadata.render_error_chunk, num_prompt_tokens, stop_strings_to_remove)
        self._chunk_prefix = (
            f'data: {{{metadata.to_json_fields(COMPLETION_TYPE)},"choices":[{{"index":{index},"text":')
        self._dialect = metadata.dialect

    def _render_chunk(self, text: str, token: TokenEvent | None, /) -> str:
        return (f'{self._chunk_prefix}{quoted(text)},"logprobs":{self._render_logprobs(token)},'
                f'"finish_reason":{self._dialect.unfinished_reason_json}}}],"usage":null}}\n\n')

    def _render_end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        self._store_token_counts(event)
        usage = (format_usage(self.num_prompt_tokens, self.num_tokens) if self._dialect.completion_ends_with_usage
                 else "null")
        reason = self._dialect.completion_chunk_finish_reasons[get_finish_reason(event, self._dialect)]
        return (f'{self._chunk_prefix}{quoted(text)},"logprobs":{self._render_logprobs(token)},'
                f'"finish_reason":"{reason}"}}],"usage":{usage}}}\n\n')

    def _render_logprobs(self, _: TokenEvent | None) -> str:
        return "null"


class LogprobsAndEchoStreamRenderer(OpenAICompletionStreamRenderer):
    """Renderer of a completion with logprobs or with its prompt, which is part of the first chunk."""

    __slots__ = ("_has_prompt_logprobs", "_logprobs", "_prompt", "_prompt_logprobs", "_prompt_top_logprobs")

    def __init__(self, metadata: ResponseMetadata, index: int, num_prompt_tokens: int,
                 stop_strings_to_remove: Sequence[str], details: CompletionOutputOptions) -> None:
        super().__init__(metadata, index, num_prompt_tokens, stop_strings_to_remove)
        self._prompt = details.prompt  # None once it is sent
        self._logprobs = CompletionLogprobsBuilder(details.tokenizer) if details.has_logprobs else None
        self._prompt_logprobs: list[float | None] = [None]
        self._prompt_top_logprobs: list[Sequence[tuple[int, float]]] = []
        self._has_prompt_logprobs = False  # whether those of the prompt are rendered

    async def render_prompt(self, stream: RequestStream) -> None:
        if self._prompt is None or self._logprobs is None:
            return
        self._keep_prompt_logprobs(await stream.take_prompt_logprobs())
        if len(self._prompt_logprobs) == len(self._prompt.token_ids):  # not if the request has failed
            await asyncio.to_thread(self._add_prompt_logprobs, self._prompt, self._logprobs)

    def render(self, events: list[StreamEvent]) -> bytes:
        self._keep_prompt_logprobs(events)
        return super().render(events)

    def _keep_prompt_logprobs(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if isinstance(event, PromptLogprobsEvent):
                self._prompt_logprobs.extend(event.logprobs)
                self._prompt_top_logprobs.extend(event.top_logprobs)

    def _add_prompt_logprobs(self, prompt: EchoedPrompt, logprobs: CompletionLogprobsBuilder) -> None:
        logprobs.add_prompt(prompt, self._prompt_logprobs, self._prompt_top_logprobs)
        self._has_prompt_logprobs, self._prompt_logprobs, self._prompt_top_logprobs = True, [], []

    def _render_chunk(self, text: str, token: TokenEvent | None, /) -> str:
        return super()._render_chunk(self._prepend_prompt(text), token)

    def _render_end(self, event: FinishedEvent, text: str, token: TokenEvent | None, /) -> str:
        return super()._render_end(event, self._prepend_prompt(text), token)

    def _prepend_prompt(self, text: str) -> str:
        """Return the text behind the prompt if that is not sent yet, with whose logprobs the chunk then begins."""
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return text
        if self._logprobs is not None and not self._has_prompt_logprobs:
            self._add_prompt_logprobs(prompt, self._logprobs)
        return prompt.text + text

    def _render_logprobs(self, token: TokenEvent | None) -> str:
        if self._logprobs is None:
            return "null"
        if token is not None:
            self._logprobs.add_token(token)
        return self._logprobs.take_json()


class EchoOnlyStreamRenderer(LogprobsAndEchoStreamRenderer):
    """Renderer of a completion that has nothing but its prompt: of the token that is generated nothing is sent."""

    has_output = False

    __slots__ = ()

    def render(self, events: list[StreamEvent]) -> bytes:
        return super().render([drop_generated_output(event) if isinstance(event, FinishedEvent) else event
                               for event in events if not isinstance(event, TokenEvent)])
