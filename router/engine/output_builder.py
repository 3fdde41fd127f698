"""Output of one request: detokenises its tokens, finds stop strings, and puts events into the client's stream.

A row of an answer is first detokenised, so that the scheduler learns of stop strings, and delivered after the
scheduler has decided how many of its tokens count.
"""

from collections.abc import Sequence as GenericSequence

from router.engine.stream import FinishedEvent, PoolingEvent, PromptLogprobsEvent, RequestStream, TokenEvent, TopToken
from router.pooling_output import PoolingOutput
from router.request import FinishReason, Request
from router.scheduler.messages import PromptLogprobs, StepResultRow
from router.scheduler.result_processor import find_finish_point
from router.telemetry.request_record_store import RequestRecord
from router.text.stop_strings import StopStringMatcher
from router.text.tokenizer import Tokenizer


class OutputBuilder:
    """Output state of one request, from token ids to events."""

    def __init__(self, request: Request, stream: RequestStream, tokenizer: Tokenizer, record: RequestRecord) -> None:
        self.request = request
        self.stream = stream
        self.record = record
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.create_detokenizer(request.prompt)
        self._stop_strings = StopStringMatcher(request.stop_strings) if request.stop_strings else None
        self._next_prompt_logprob_index = 1  # the first token has none
        self._special_tokens = tokenizer.special_tokens
        self._row_events: list[TokenEvent] = []  # events of the row that was detokenised last
        self._text_pieces: list[str] = []  # pieces of all detokenised tokens, without special tokens
        self._text_end: int | None = None  # index in the whole text at which a stop string ended
        self._pooling_output: PoolingOutput | None = None  # result of an embedding or classification request

    def detokenize_row(self, row: StepResultRow) -> int | None:
        """Detokenise a row. Returns how many of its tokens count if a stop string ends in one of them, else None."""
        self._row_events = []
        tokens = row.tokens if len(row.tokens) == 1 else self._truncate_at_finish(row.tokens)
        for index, token in enumerate(tokens):
            piece = self._detokenizer.step(token)
            self._text_pieces.append(piece)
            is_special = token in self._special_tokens
            text = self._tokenizer.decode_token(token) if is_special else piece
            top = self._make_top_tokens(row.top_logprobs[index]) if row.top_logprobs else ()
            self._row_events.append(TokenEvent(token, text, row.logprobs[index], is_special, top))
            if self._stop_strings is not None and (end := self._stop_strings.feed(piece)) is not None:
                self._text_end = end
                return len(self._row_events)
        return None

    def set_pooling_output(self, output: PoolingOutput) -> None:
        """Set the result of an embedding or classification request; `finish` delivers it."""
        self._pooling_output = output

    def deliver_row(self) -> None:
        """Deliver the row that was detokenised last.

        All of its events count: `detokenize_row` and the scheduler cut a row by the same rule, `find_finish_point`.
        """
        for event in self._row_events:
            self.stream.put(event)
        self.record.num_generated += len(self._row_events)

    def _truncate_at_finish(self, tokens: GenericSequence[int]) -> GenericSequence[int]:
        """Cut a row after an end token and at the length limit. The first token of a row always counts."""
        return tokens[:find_finish_point(self.request, self.record.num_generated, tokens, None)[0]]

    def deliver_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Deliver the logprobs not delivered yet: a prompt runs again after a preemption or a loss of the shards."""
        start = self._next_prompt_logprob_index
        new_logprobs = tuple(logprobs.logprobs[max(0, start - logprobs.start):])
        if new_logprobs:
            self.stream.put(PromptLogprobsEvent(start, new_logprobs))
            self._next_prompt_logprob_index += len(new_logprobs)

    def finish(self, reason: FinishReason) -> None:
        if self._pooling_output is not None:
            self.stream.put(PoolingEvent(self._pooling_output, self.record.timeline))
            return
        self.record.finish_reason = reason
        if self._text_end is None:
            self._text_pieces.append(rest := self._detokenizer.finish())
            self._text_end = self._stop_strings.feed(rest) if self._stop_strings is not None else None
        text = "".join(self._text_pieces)[:self._text_end]
        self.stream.put(FinishedEvent(reason, text, self.record.num_generated, self.record.timeline))

    def _make_top_tokens(self, pairs: GenericSequence[tuple[int, float]]) -> tuple[TopToken, ...]:
        tokenizer = self._tokenizer
        return tuple(TopToken(token, tokenizer.decode_token(token), logprob, tokenizer.is_special_token(token))
                     for token, logprob in pairs)
