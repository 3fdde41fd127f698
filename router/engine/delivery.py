"""Output of one request: detokenises its tokens, finds stop strings, and puts events into the client's stream.

A row of an answer is first read, so that the scheduler learns of stop strings, and delivered after the scheduler has
decided how many of its tokens count.
"""

from collections.abc import Sequence as Rows

from router.engine.stream import FinishedEvent, PromptEvent, Stream, TokenEvent, ToldEvent, TopToken
from router.request import FinishReason, Request
from router.scheduler.plan import AnswerRow, PromptLogprobs, Told
from router.telemetry.request_log import Account
from router.text.stop_strings import StopStrings, count_tokens
from router.text.tokenizer import Tokenizer


class Delivery:
    """Output state of one request, from token ids to events."""

    def __init__(self, request: Request, stream: Stream, tokenizer: Tokenizer, account: Account) -> None:
        self.request = request
        self.stream = stream
        self.account = account
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(request.prompt)
        self._stop_strings = StopStrings(request.stop_strings) if request.stop_strings else None
        self._num_prompt_logprobs = 1  # the first token has none
        self._special = tokenizer.special
        self._row: list[TokenEvent] = []  # events of the row that was read last
        self._text: list[str] = []  # pieces of all tokens read, without special tokens
        self._text_end: int | None = None  # index in the whole text at which a stop string ended
        self._told: Told | None = None  # result of an embedding or classification request

    def read(self, row: AnswerRow) -> int | None:
        """Detokenise a row. Returns how many of its tokens count if a stop string ends in one of them, else None."""
        self._row = []
        for index, token in enumerate(self._counted(row.tokens)):
            piece = self._detokenizer.step(token)
            self._text.append(piece)
            special = token in self._special
            text = self._tokenizer.token_text(token) if special else piece
            top = self._top_tokens(row.top[index]) if row.top else ()
            self._row.append(TokenEvent(token, text, row.logprobs[index], special, top))
            if self._stop_strings is not None and (end := self._stop_strings.feed(piece)) is not None:
                self._text_end = end
                return len(self._row)
        return None

    def hear(self, told: Told) -> None:
        """Set the result of an embedding or classification request; `finish` delivers it."""
        self._told = told

    def deliver(self) -> None:
        """Deliver the row that was read last.

        All of its events count: `read` and the scheduler cut a row by the same rule, `count_tokens`.
        """
        for event in self._row:
            self.stream.put(event)
        self.account.num_generated += len(self._row)

    def _counted(self, tokens: Rows[int]) -> Rows[int]:
        """Cut a row after an end token and at the length limit. The first token of a row always counts."""
        known = self.account.num_generated
        return tokens if len(tokens) == 1 else tokens[:count_tokens(self.request, known, tokens, None)[0]]

    def deliver_prompt(self, logprobs: PromptLogprobs) -> None:
        """Deliver the logprobs not delivered yet: a prompt runs again after a preemption or a loss of the shards."""
        known = self._num_prompt_logprobs
        fresh = tuple(logprobs.logprobs[max(0, known - logprobs.start):])
        if fresh:
            self.stream.put(PromptEvent(known, fresh))
            self._num_prompt_logprobs += len(fresh)

    def finish(self, reason: FinishReason) -> None:
        if self._told is not None:
            self.stream.put(ToldEvent(self._told, self.account.story))
            return
        self.account.finish_reason = reason
        if self._text_end is None:
            self._text.append(rest := self._detokenizer.finish())
            self._text_end = self._stop_strings.feed(rest) if self._stop_strings is not None else None
        text = "".join(self._text)[:self._text_end]
        self.stream.put(FinishedEvent(reason, text, self.account.num_generated, self.account.story))

    def _top_tokens(self, pairs: Rows[tuple[int, float]]) -> tuple[TopToken, ...]:
        tokenizer = self._tokenizer
        return tuple(TopToken(token, tokenizer.token_text(token), logprob, tokenizer.is_special(token))
                     for token, logprob in pairs)
