"""Rendering of answers in OpenAI's Responses API: the events of a stream, the last of which has the whole response. A
response that is not streamed is the one with which its stream would end."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted

from router.engine.output_stream import FinishedEvent, TokenEvent
from router.http.openai.answer_parts import COMPLETED_FINISH_REASONS, AnswerStreamRenderer
from router.http.openai.rendering import OPENAI_DIALECT, get_finish_reason, token_logprobs_json
from router.http.transport.error_responses import OpenAIErrorReply
from router.http.transport.services import GenerationOutput
from router.text.response_parser import ResponseParserProtocol, ResponsePart
from router.text.tokenizer import Tokenizer


class ResponseEvents:
    """Events of one response. They are numbered, and the ended items of the output are kept for the last one."""

    __slots__ = ("_created_at", "_echoed_fields", "_id", "_num_events", "items", "response_json")

    def __init__(self, response_id: str, echoed_fields: str) -> None:
        """`echoed_fields`: JSON of the response's fields that repeat the request, without braces."""
        self._id = response_id
        self._created_at = int(time.time())
        self._echoed_fields = echoed_fields
        self._num_events = 0
        self.items: list[str] = []  # as JSON
        self.response_json = ""  # as the latest event has it

    def render(self, event_type: str, fields: str) -> str:
        """Render an event with these JSON fields."""
        number, self._num_events = self._num_events, self._num_events + 1
        return f'event: {event_type}\ndata: {{"type":"{event_type}","sequence_number":{number},{fields}}}\n\n'

    def render_response(self, event_name: str, status: str, usage: str = "null", error: str = "null") -> str:
        """Render an event with the whole response. `usage` and `error` are JSON."""
        completed_at = int(time.time()) if status == "completed" else "null"
        incomplete_details = '{"reason":"max_output_tokens"}' if status == "incomplete" else "null"
        self.response_json = (
            f'{{"id":"{self._id}","object":"response","created_at":{self._created_at},"status":"{status}",'
            f'"completed_at":{completed_at},"error":{error},"incomplete_details":{incomplete_details},'
            f'"output":[{",".join(self.items)}],"usage":{usage},{self._echoed_fields}}}')
        return self.render(f"response.{event_name}", f'"response":{self.response_json}')

    def render_failure(self, error: Exception) -> str:
        """Render the end of a stream that fails. OpenAI's clients raise an exception for an event that has `error`, and
        for no other; beside it are the fields that are documented."""
        reply = OpenAIErrorReply.from_exception(error)
        fields = f'"code":{quoted(reply.code or reply.type)},"message":{quoted(reply.message)}'
        param = quoted(reply.param) if reply.param else "null"
        return (self.render_response("failed", "failed", error=f"{{{fields}}}")
                + self.render("error", f'{fields},"param":{param},{reply.to_json()[1:-1]}'))


@dataclass(frozen=True, slots=True)
class OutputItemType:
    """A type of items: its name, the prefix of their ids, and the type of their text, which names of events have."""

    name: str
    id_prefix: str
    text_type: str
    own_fields: str = ""  # as JSON
    has_part: bool = True  # whether the text is a content part


MESSAGE = OutputItemType("message", "msg", "output_text", '"role":"assistant",')
REASONING = OutputItemType("reasoning", "rs", "reasoning_text", '"summary":[],')
FUNCTION_CALL = OutputItemType("function_call", "fc", "function_call_arguments", has_part=False)


class OutputItem:
    """The item of the output to which the text belongs that comes now."""

    __slots__ = ("_events", "_fields", "_logprobs", "_position", "_texts", "type")

    def __init__(self, events: ResponseEvents, item_type: OutputItemType, own_fields: str) -> None:
        item_id = f"{item_type.id_prefix}_{secrets.token_hex(24)}"
        self.type = item_type
        self._events = events
        self._fields = f'"id":"{item_id}","type":"{item_type.name}",{item_type.own_fields}{own_fields}'
        self._position = (f'"item_id":"{item_id}","output_index":{len(events.items)}'
                          + ',"content_index":0' * item_type.has_part)
        self._texts: list[str] = []
        self._logprobs: list[str] = []  # JSON of the tokens of a message

    def render_opening(self) -> str:
        if not self.type.has_part:
            return self._render_item("added", self._to_json("in_progress", '"arguments":""'))
        return (self._render_item("added", self._to_json("in_progress", '"content":[]'))
                + self._render_part("added", self._part_json()))

    def render_delta(self, text: str, logprobs: Sequence[str]) -> str:
        self._texts.append(text)
        self._logprobs += logprobs
        return self._events.render(f"response.{self.type.text_type}.delta",
                                   f'{self._position},"delta":{quoted(text)}{self._logprobs_field(logprobs)}')

    def render_end(self, status: str, logprobs: Sequence[str] = ()) -> str:
        """Render the end of the item, with the logprobs of tokens that came after its text."""
        self._logprobs += logprobs
        text_json, done = quoted("".join(self._texts)), f"response.{self.type.text_type}.done"
        if self.type.has_part:
            part = self._part_json(text_json)
            item = self._to_json(status, f'"content":[{part}]')
            fields = f'{self._position},"text":{text_json}{self._logprobs_field(self._logprobs)}'
            rendered = self._events.render(done, fields) + self._render_part("done", part)
        else:
            item = self._to_json(status, f'"arguments":{text_json}')
            rendered = self._events.render(done, f'{self._position},"arguments":{text_json}')
        rendered += self._render_item("done", item)
        self._events.items.append(item)
        return rendered

    def _to_json(self, status: str, text_field: str) -> str:
        return f'{{{self._fields}"status":"{status}",{text_field}}}'

    def _part_json(self, text_json: str = '""') -> str:
        annotations_field = ',"annotations":[]' if self.type is MESSAGE else ""
        return (f'{{"type":"{self.type.text_type}","text":{text_json}{annotations_field}'
                f"{self._logprobs_field(self._logprobs)}}}")

    def _logprobs_field(self, logprobs: Sequence[str]) -> str:
        return f',"logprobs":[{",".join(logprobs)}]' if self.type is MESSAGE else ""

    def _render_item(self, event_name: str, item: str) -> str:
        return self._events.render(f"response.output_item.{event_name}",
                                   f'"output_index":{len(self._events.items)},"item":{item}')

    def _render_part(self, event_name: str, part: str) -> str:
        return self._events.render(f"response.content_part.{event_name}", f'{self._position},"part":{part}')


class ResponseStreamRenderer(AnswerStreamRenderer):
    """Renderer of a response's stream. An item ends where the next one begins, or with the response; the last item of
    an incomplete response is incomplete, too."""

    __slots__ = ("_events", "_item", "_logprob_tokenizer", "_tokens")

    def __init__(self, events: ResponseEvents, num_prompt_tokens: int, stop_strings_to_remove: Sequence[str],
                 parser: ResponseParserProtocol | None, logprob_tokenizer: Tokenizer | None = None) -> None:
        """`logprob_tokenizer`: the tokenizer, if the response has logprobs."""
        super().__init__(events.render_failure, num_prompt_tokens, stop_strings_to_remove, parser)
        self._events = events
        self._logprob_tokenizer = logprob_tokenizer
        self._item: OutputItem | None = None
        self._tokens: list[TokenEvent] = []  # since the last part

    def render_opening(self) -> str:
        return (self._events.render_response("created", "in_progress")
                + self._events.render_response("in_progress", "in_progress"))

    def render_whole(self, output: GenerationOutput) -> str:
        """Return the JSON of the response to an output that is not streamed."""
        needs_tokens = self._parser is not None or self._logprob_tokenizer is not None
        self.render([*output.tokens, output.final_event] if needs_tokens else [output.final_event])
        return self._events.response_json

    def _render_parts(self, parts: Sequence[ResponsePart], token: TokenEvent | None) -> str:
        if token is not None:
            self._tokens.append(token)
        return super()._render_parts(parts, token)

    def _render_text(self, text: str) -> str:
        if self._item is not None and self._item.type is not MESSAGE:
            del self._tokens[:-1]  # they ended the item before
        return self._render_delta(MESSAGE, text, self._take_logprobs())

    def _render_reasoning(self, text: str) -> str:
        self._tokens.clear()
        return self._render_delta(REASONING, text)

    def _render_call_opening(self, name: str) -> str:
        return self._open_item(FUNCTION_CALL, f'"call_id":"call_{secrets.token_hex(12)}","name":{quoted(name)},')

    def _render_arguments(self, text: str) -> str:
        self._tokens.clear()
        return self._render_delta(FUNCTION_CALL, text)

    def _render_call_end(self) -> str:
        return ""  # what comes next ends the item

    def _render_answer_end(self, event: FinishedEvent) -> str:
        is_completed = get_finish_reason(event, OPENAI_DIALECT) in COMPLETED_FINISH_REASONS
        status = "completed" if is_completed else "incomplete"
        item_end = "" if self._item is None else self._item.render_end(status, self._take_logprobs())
        usage = (
            f'{{"input_tokens":{self.num_prompt_tokens},'
            f'"input_tokens_details":{{"cached_tokens":{event.timeline.num_prefix_hit_tokens},"cache_write_tokens":0}},'
            f'"output_tokens":{event.num_tokens},'
            f'"output_tokens_details":{{"reasoning_tokens":{self._stripper.num_reasoning_tokens}}},'
            f'"total_tokens":{self.num_prompt_tokens + event.num_tokens}}}')
        return item_end + self._events.render_response(status, status, usage)

    def _render_delta(self, item_type: OutputItemType, text: str, logprobs: Sequence[str] = ()) -> str:
        """Render a piece of text, in a new item unless the open one is of this type."""
        opening = "" if self._item is not None and self._item.type is item_type else self._open_item(item_type)
        assert self._item is not None
        return opening + self._item.render_delta(text, logprobs)

    def _open_item(self, item_type: OutputItemType, own_fields: str = "") -> str:
        item_end = "" if self._item is None else self._item.render_end("completed")
        self._item = OutputItem(self._events, item_type, own_fields)
        return item_end + self._item.render_opening()

    def _take_logprobs(self) -> list[str]:
        """Return the logprobs, if they are asked for, of the tokens since the last part."""
        tokens, self._tokens = self._tokens, []
        if self._logprob_tokenizer is None:
            return []
        return [token_logprobs_json([token], self._logprob_tokenizer)[1:-1] for token in tokens]
