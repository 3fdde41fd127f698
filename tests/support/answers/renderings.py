"""The five renderings of answers, as streams and whole, and what a client has of each in the end. Readers of streams
add up the pieces as official clients do, and check the order of events."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic_core import from_json
from support.answers.drawn_answers import PROMPT_TEXT, STOP_STRINGS, DrawnAnswer, Generation

from router.engine.output_stream import FailedEvent, PromptLogprobsEvent, StreamEvent
from router.errors import GenerationFailed
from router.http.anthropic.rendering import AnthropicStreamRenderer, MessageMetadata, answer_json
from router.http.ollama.rendering import OllamaResponseRenderer, OllamaStreamRenderer, ollama_answer_json
from router.http.openai.answer_parts import AnswerStreamRenderer, parse_answer
from router.http.openai.completion_rendering import (
    COMPLETION_TYPE,
    CompletionOutputOptions,
    EchoedPrompt,
    LogprobsAndEchoStreamRenderer,
    OpenAICompletionStreamRenderer,
    completion_json,
    output_choice_json,
)
from router.http.openai.rendering import (
    CHAT_CHUNK_TYPE,
    DONE_EVENT,
    ChatOutputOptions,
    ChoiceStreamRenderer,
    OpenAIChatStreamRenderer,
    ResponseMetadata,
    chat_completion_json,
    render_error_chunk,
    text_chat_choice_json,
    usage_chunk,
)
from router.http.openai.responses_rendering import ResponseEvents, ResponseStreamRenderer
from router.http.openai.tool_call_rendering import OpenAIToolChatStreamRenderer, tool_chat_choice_json

FAILURE = FailedEvent(GenerationFailed("broken"))
FINISH_REASONS = {  # what the words of the five renderings mean
    "stop": "stop", "end_turn": "stop", "stop_sequence": "stop", "completed": "stop",
    "length": "length", "max_tokens": "length", "incomplete": "length", "tool_calls": "calls", "tool_use": "calls"}


@dataclass
class ReceivedAnswer:
    """What a client has in the end. `ends` are the events that end a stream."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[Any]] = field(default_factory=list)  # name and arguments of each
    logprobs: Any = None
    finish_reason: str = ""
    usage: Any = None
    ends: list[str] = field(default_factory=list)

    @property
    def content(self) -> tuple[Any, ...]:
        return self.text, self.reasoning, self.calls


@dataclass(frozen=True)
class Rendering:
    """A rendering of one answer, whole or as a stream. The options are those of its request."""

    answer: DrawnAnswer
    has_logprobs: bool
    keeps_stop_strings: bool
    echoes_prompt: bool
    returns_token_ids: bool = False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return STOP_STRINGS if self.answer.has_stop_strings else ()

    @property
    def stop_strings_to_remove(self) -> tuple[str, ...]:
        return () if self.keeps_stop_strings else self.stop_strings

    def render_whole(self, generation: Generation) -> str:
        raise NotImplementedError

    def create_renderer(self, generation: Generation, index: int = 0) -> ChoiceStreamRenderer:
        raise NotImplementedError

    def render_stream(self, generation: Generation, bursts: Sequence[list[StreamEvent]]) -> str:
        """Render as the route's handler does: a failure is rendered behind what came before it."""
        renderer = self.create_renderer(generation)
        assert isinstance(renderer, AnswerStreamRenderer)
        rendered = renderer.render_opening() + b"".join([renderer.render(burst) for burst in bursts]).decode()
        assert renderer.is_finished
        return rendered if renderer.error is None else rendered + renderer.render_error(renderer.error)

    def read_whole(self, text: str) -> ReceivedAnswer:
        raise NotImplementedError

    def read_stream(self, text: str) -> ReceivedAnswer:
        raise NotImplementedError


def parse_events(text: str) -> list[dict[str, Any]]:
    """Return the data of server-sent events, which have their type as their name, if they have one."""
    assert text.isascii()
    events = []
    for block in text.split("\n\n")[:-1]:
        *names, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert names in ([], [f"event: {events[-1].get('type')}"])
    assert text == "" or text.endswith("\n\n")
    return events


class OpenAIRendering(Rendering):
    """What chats and completions have in common: chunks of choices, usage of all together, and `[DONE]`."""

    chunk_type = ""
    metadata = ResponseMetadata("id-1", 1, "loom", "fingerprint", render_error_chunk=partial(
        render_error_chunk, path="/v1/chat/completions", compat="none"))

    def render_stream(self, generation: Generation, bursts: Sequence[list[StreamEvent]]) -> str:
        return self.render_choices([(generation, bursts)], random.Random(0))

    def render_choices(self, choices: Sequence[tuple[Generation, Sequence[list[StreamEvent]]]],
                       rng: random.Random) -> str:
        """Render the choices of one stream, whose bursts come in any order."""
        renderers = [self.create_renderer(generation, index) for index, (generation, _) in enumerate(choices)]
        waiting = [(renderer, [*bursts]) for renderer, (_, bursts) in zip(renderers, choices, strict=True)]
        rendered = ""
        while waiting:
            renderer, bursts = place = rng.choice(waiting)
            rendered += renderer.render(bursts.pop(0)).decode()
            if renderer.error is not None:
                return rendered + self.metadata.render_error_chunk(renderer.error)
            if not bursts:
                waiting.remove(place)
        assert all(renderer.is_finished for renderer in renderers)
        return rendered + usage_chunk(self.metadata, self.chunk_type, renderers, len(renderers)) + DONE_EVENT

    def read_stream(self, text: str) -> ReceivedAnswer:
        return self.read_choices(text, 1)[0]

    def read_choices(self, text: str, num_choices: int) -> list[ReceivedAnswer]:
        assert text.count(DONE_EVENT) == 1
        received = [ReceivedAnswer() for _ in range(num_choices)]
        *chunks, last = parse_events(text.removesuffix(DONE_EVENT))
        for chunk in chunks:
            [choice] = chunk["choices"]
            answer = received[choice["index"]]
            assert not answer.ends, "a chunk behind the end"
            assert chunk["usage"] is None
            self.add_choice(answer, choice)
            if choice["finish_reason"] is not None:
                answer.finish_reason = choice["finish_reason"]
                answer.ends.append("finish_reason")
        for answer in received:
            if "error" in last:
                answer.ends.append("error")
            else:
                assert last["choices"] == []
                answer.usage = last["usage"]
        return received

    def read_whole(self, text: str) -> ReceivedAnswer:
        completion = json.loads(text)
        [choice] = completion["choices"]
        answer = ReceivedAnswer(finish_reason=choice["finish_reason"], usage=completion["usage"])
        self.add_choice(answer, choice | {"delta": choice.get("message")})
        return answer

    def add_choice(self, answer: ReceivedAnswer, choice: Mapping[str, Any]) -> None:
        raise NotImplementedError


class ChatRendering(OpenAIRendering):
    chunk_type = CHAT_CHUNK_TYPE

    def _create_options(self, generation: Generation) -> ChatOutputOptions:
        return ChatOutputOptions(includes_usage=True, includes_logprobs=self.has_logprobs,
                                 tokenizer=generation.tokenizer, stop_strings_to_remove=self.stop_strings_to_remove,
                                 returns_token_ids=self.returns_token_ids)

    def render_whole(self, generation: Generation) -> str:
        options, parser = self._create_options(generation), self.answer.create_parser()
        choice = (text_chat_choice_json(self.metadata, 0, generation.output, options) if parser is None
                  else tool_chat_choice_json(self.metadata, 0, generation.output, options, parser))
        return chat_completion_json(self.metadata, [generation.output], [choice]).text

    def create_renderer(self, generation: Generation, index: int = 0) -> ChoiceStreamRenderer:
        options, parser = self._create_options(generation), self.answer.create_parser()
        return (OpenAIChatStreamRenderer(self.metadata, index, len(PROMPT_TEXT), options) if parser is None
                else OpenAIToolChatStreamRenderer(self.metadata, index, len(PROMPT_TEXT), options, parser))

    def add_choice(self, answer: ReceivedAnswer, choice: Mapping[str, Any]) -> None:
        delta = choice["delta"]
        answer.text += delta.get("content") or ""
        answer.reasoning += delta.get("reasoning_content", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            index, function = call.get("index", len(answer.calls)), call["function"]
            if "name" in function:
                assert index == len(answer.calls)
                assert call["id"]
                answer.calls.append([function["name"], ""])
            assert index == len(answer.calls) - 1, "arguments belong to the last call"
            answer.calls[index][1] += function["arguments"]
        if choice["logprobs"] is not None:
            answer.logprobs = (answer.logprobs or []) + choice["logprobs"]["content"]


class CompletionRendering(OpenAIRendering):
    chunk_type = COMPLETION_TYPE

    def _create_details(self, generation: Generation) -> CompletionOutputOptions | None:
        prompt = EchoedPrompt(generation.output.validated_request.request.prompt, PROMPT_TEXT)
        return (CompletionOutputOptions(generation.tokenizer, self.has_logprobs, prompt if self.echoes_prompt else None)
                if self.has_logprobs or self.echoes_prompt else None)

    def render_whole(self, generation: Generation) -> str:
        choice = output_choice_json(self.metadata, 0, generation.output, self.stop_strings_to_remove,
                                    self._create_details(generation))
        return completion_json(self.metadata, [generation.output], 1, [choice]).text

    def create_renderer(self, generation: Generation, index: int = 0) -> ChoiceStreamRenderer:
        details, output = self._create_details(generation), generation.output
        if details is None:
            return OpenAICompletionStreamRenderer(self.metadata, index, len(PROMPT_TEXT), self.stop_strings_to_remove)
        renderer = LogprobsAndEchoStreamRenderer(self.metadata, index, len(PROMPT_TEXT), self.stop_strings_to_remove,
                                                 details)
        [_, logprob] = output.prompt_logprobs
        assert logprob is not None
        assert renderer.render([PromptLogprobsEvent(1, (logprob,), output.prompt_top_logprobs)]) == b""
        return renderer

    def add_choice(self, answer: ReceivedAnswer, choice: Mapping[str, Any]) -> None:
        answer.text += choice["text"]
        if choice["logprobs"] is not None:
            known = answer.logprobs or {name: [] for name in choice["logprobs"]}
            answer.logprobs = {name: known[name] + values for name, values in choice["logprobs"].items()}


class ResponsesRendering(Rendering):
    def create_renderer(self, generation: Generation, index: int = 0) -> ResponseStreamRenderer:
        events = ResponseEvents("resp_1", '"model":"loom"')
        return ResponseStreamRenderer(events, len(PROMPT_TEXT), self.stop_strings_to_remove,
                                      self.answer.create_parser(), generation.tokenizer if self.has_logprobs else None)

    def render_whole(self, generation: Generation) -> str:
        return self.create_renderer(generation).render_whole(generation.output)

    def read_whole(self, text: str) -> ReceivedAnswer:
        response = json.loads(text)
        answer = ReceivedAnswer(finish_reason=response["status"], usage=response["usage"])
        for item in response["output"]:
            match item:
                case {"type": "message", "content": [part]}:
                    answer.text += part["text"]
                    answer.logprobs = (answer.logprobs or []) + part["logprobs"]
                case {"type": "reasoning", "content": [part]}:
                    answer.reasoning += part["text"]
                case {"type": "function_call"}:
                    answer.calls.append([item["name"], item["arguments"]])
        return answer

    def read_stream(self, text: str) -> ReceivedAnswer:
        """Read the response with which the stream ends. The pieces before it must add up to the same."""
        events, pieces = parse_events(text), ReceivedAnswer()
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        statuses = [event["response"]["status"] for event in events if "response" in event]
        assert statuses[:2] == ["in_progress"] * 2
        for event in events:
            match event:
                case {"type": "response.output_text.delta"}:
                    pieces.text += event["delta"]
                case {"type": "response.reasoning_text.delta"}:
                    pieces.reasoning += event["delta"]
                case {"type": "response.output_item.added", "item": {"type": "function_call"} as item}:
                    pieces.calls.append([item["name"], item["arguments"]])
                case {"type": "response.function_call_arguments.delta"}:
                    pieces.calls[-1][1] += event["delta"]
        if statuses[2:] == ["failed"]:
            assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
            pieces.ends = ["error"]
            return pieces
        answer = self.read_whole(json.dumps(events[-1]["response"]))
        assert answer.content == pieces.content
        answer.ends = statuses[2:]
        return answer


class MessagesRendering(Rendering):
    def _create_metadata(self) -> MessageMetadata:
        return MessageMetadata("msg_1", "loom", len(PROMPT_TEXT), self.stop_strings, shows_thinking=True)

    def create_renderer(self, generation: Generation, index: int = 0) -> AnthropicStreamRenderer:
        return AnthropicStreamRenderer(self._create_metadata(), self.answer.create_parser())

    def render_whole(self, generation: Generation) -> str:
        return answer_json(self._create_metadata(), parse_answer(generation.output, self.answer.create_parser(),
                                                                 self.stop_strings))

    def read_whole(self, text: str) -> ReceivedAnswer:
        message = json.loads(text)
        answer = ReceivedAnswer(finish_reason=message["stop_reason"], usage=message["usage"])
        for block in message["content"]:
            match block:
                case {"type": "text"}:
                    answer.text += block["text"]
                case {"type": "thinking"}:
                    answer.reasoning += block["thinking"]
                case {"type": "tool_use"}:
                    answer.calls.append([block["name"], block["input"]])
        return answer

    def read_stream(self, text: str) -> ReceivedAnswer:
        start, ping, *events = parse_events(text)
        message, arguments, answer_ends = start["message"], "", []
        assert (start["type"], ping["type"], message["content"]) == ("message_start", "ping", [])
        for event in events:
            assert not answer_ends, "an event behind the end"
            match event:
                case {"type": "content_block_start", "index": index, "content_block": block}:
                    assert index == len(message["content"])
                    message["content"].append(block)
                    arguments = ""
                case {"type": "content_block_delta", "index": index, "delta": {"type": kind} as delta}:
                    assert index == len(message["content"]) - 1
                    if kind == "input_json_delta":
                        arguments += delta["partial_json"]
                        message["content"][-1]["input"] = parse_partial_object(arguments)
                    else:
                        message["content"][-1][kind.removesuffix("_delta")] += delta[kind.removesuffix("_delta")]
                case {"type": "message_delta"}:
                    message |= event["delta"] | {"usage": message["usage"] | event["usage"]}
                case {"type": "message_stop" | "error" as kind}:
                    answer_ends.append(kind)
        answer = self.read_whole(json.dumps(message))
        answer.ends = answer_ends
        return answer


def parse_partial_object(text: str) -> Any:
    """Parse as Anthropic's client does, but without its NaN; an empty object for what is no beginning of JSON."""
    try:
        return from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return {}


class OllamaRendering(Rendering):
    def _create_response(self, generation: Generation) -> OllamaResponseRenderer:
        return OllamaResponseRenderer("loom", 0.0, is_chat=True,
                                      logprob_tokenizer=generation.tokenizer if self.has_logprobs else None)

    def create_renderer(self, generation: Generation, index: int = 0) -> OllamaStreamRenderer:
        return OllamaStreamRenderer(self._create_response(generation), len(PROMPT_TEXT), self.stop_strings,
                                    self.answer.create_parser())

    def render_whole(self, generation: Generation) -> str:
        return ollama_answer_json(self._create_response(generation), generation.output, self.answer.create_parser(),
                                  self.stop_strings)

    def read_whole(self, text: str) -> ReceivedAnswer:
        return self._add_up([json.loads(text)])

    def read_stream(self, text: str) -> ReceivedAnswer:
        answer = self._add_up([json.loads(line) for line in text.splitlines()])
        assert text.endswith("\n")
        return answer

    def _add_up(self, objects: Sequence[Mapping[str, Any]]) -> ReceivedAnswer:
        answer, last_index = ReceivedAnswer(), -1
        for each in objects:
            assert not answer.ends, "a line behind the end"
            if "error" in each:
                answer.ends.append("error")
                continue
            message = each["message"]
            answer.text += message["content"]
            answer.reasoning += message.get("thinking", "")
            for call in message.get("tool_calls", ()):
                assert call["function"]["index"] > last_index  # calls that are text count, too
                last_index = call["function"]["index"]
                answer.calls.append([call["function"]["name"], call["function"]["arguments"]])
            if "logprobs" in each:
                answer.logprobs = (answer.logprobs or []) + each["logprobs"]
            if each["done"]:
                answer.ends.append("done")
                answer.finish_reason = each["done_reason"]
                answer.usage = [each["prompt_eval_count"], each["eval_count"]]
        return answer


def count_tokens(usage: Any) -> int:
    """Return the number of generated tokens in the usage of any rendering."""
    if isinstance(usage, list):
        return int(usage[1])
    return int(usage["completion_tokens"] if "completion_tokens" in usage else usage["output_tokens"])


RENDERINGS: Mapping[str, type[Rendering]] = {
    "chat": ChatRendering, "completion": CompletionRendering, "response": ResponsesRendering,
    "message": MessagesRendering, "Ollama": OllamaRendering}
