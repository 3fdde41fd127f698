"""Requests of every dialect, drawn from a seed: what is sent, and how its client behaves.

All requests are deterministic: greedy, or with a seed of their own. The same request therefore has the same answer,
with and without faults.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

JsonObject = dict[str, Any]
AnswerFormat = Literal["tgi", "tgi_stream", "chat", "chat_stream", "completion", "completion_stream", "responses",
                       "responses_stream", "messages", "messages_stream", "ollama", "ollama_stream", "plain"]
Behavior = Literal["reads", "reads slowly", "leaves"]

ADAPTERS = ("", "", "json", "kjv", "pirate", "shout")  # the empty name is the base model
MODEL = "weft/demo"
BEHAVIORS: tuple[Behavior, ...] = ("reads",) * 16 + ("reads slowly",) * 2 + ("leaves",) * 2
OPENINGS = ("Once upon a time", "The old king", "In the beginning", "A ship at sea", "My dear friend", "Of mice and")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"]}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
                                      "required": ["city"]}}}]
REGULAR_EXPRESSIONS = ("[a-z]{4,30}", "[0-9]{3}-[0-9]{4}", "(yes|no|maybe)( [a-z]+){2,6}")


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    dialect: str
    path: str
    body: JsonObject = field(hash=False)
    answer_format: AnswerFormat


class RequestDrawer:
    """Draws requests: each method is a dialect."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self) -> ChaosRequest:
        drawers = [
            self.generate, self.generate, self.generate_stream, self.generate_stream, self.chat, self.chat, self.tools,
            self.completion, self.responses, self.messages, self.ollama_chat, self.ollama_generate, self.embedding,
            self.tokenize]
        return self._random.choice(drawers)()

    def prompt(self) -> str:
        words = self._random.choices(["sea", "wind", "king", "bread", "stone", "night"], k=self._random.randint(0, 60))
        return " ".join([self._random.choice(OPENINGS), *words])

    def num_tokens(self) -> int:
        return self._random.choice([1, 8, 24, 48, 96, 160])

    def messages_list(self) -> list[JsonObject]:
        return [{"role": "user", "content": self.prompt()}]

    def model(self) -> str:
        return self._random.choice(ADAPTERS) or MODEL

    def is_streamed(self) -> bool:
        return self._random.random() < 0.6

    def tgi_parameters(self) -> JsonObject:
        parameters: JsonObject = {"max_new_tokens": self.num_tokens(), "details": True}
        if self._random.random() < 0.4:
            parameters |= {"do_sample": True, "seed": self._random.randrange(2 ** 31), "temperature": 0.8, "top_p": 0.9}
        if self._random.random() < 0.08:
            parameters["merged_adapters"] = {"ids": self._random.sample(["json", "kjv", "pirate", "shout"], 2),
                                             "weights": [0.5, 0.5], "merge_strategy": "linear"}
        elif adapter := self._random.choice(ADAPTERS):
            parameters["adapter_id"] = adapter
        if self._random.random() < 0.15:
            parameters |= {"top_n_tokens": 3, "decoder_input_details": True}
        if self._random.random() < 0.2:
            parameters["grammar"] = self._random.choice([
                {"type": "json", "value": SCHEMA},
                {"type": "regex", "value": self._random.choice(REGULAR_EXPRESSIONS)}])
        elif self._random.random() < 0.2:
            parameters["stop"] = [self._random.choice([".", " the ", "\n"])]
        return parameters

    def openai_sampling(self) -> JsonObject:
        if self._random.random() < 0.6:
            return {"temperature": 0}
        return {"temperature": 0.9, "top_p": 0.9, "seed": self._random.randrange(2 ** 31)}

    def generate(self) -> ChaosRequest:
        body = {"inputs": self.prompt(), "parameters": self.tgi_parameters()}
        return ChaosRequest("tgi", "/generate", body, "tgi")

    def generate_stream(self) -> ChaosRequest:
        body = {"inputs": self.prompt(), "parameters": self.tgi_parameters() | {"decoder_input_details": False}}
        return ChaosRequest("tgi", "/generate_stream", body, "tgi_stream")

    def chat(self) -> ChaosRequest:
        body: JsonObject = {"model": self.model(), "messages": self.messages_list(), "max_tokens": self.num_tokens(),
                            **self.openai_sampling()}
        if self._random.random() < 0.3:
            body["n"] = self._random.randint(2, 4)
        if self._random.random() < 0.2:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}
        return self._streamed("openai chat", "/v1/chat/completions", body, "chat", "chat_stream")

    def tools(self) -> ChaosRequest:
        body = {"model": MODEL, "messages": self.messages_list(), "max_tokens": 60, "tools": TOOLS, "temperature": 0,
                "tool_choice": self._random.choice(["required", "auto"])}
        return self._streamed("openai tools", "/v1/chat/completions", body, "chat", "chat_stream")

    def completion(self) -> ChaosRequest:
        prompt: Any = self.prompt() if self._random.random() < 0.7 else [self.prompt() for _ in range(3)]
        body = {"model": self.model(), "prompt": prompt, "max_tokens": self.num_tokens(), **self.openai_sampling()}
        return self._streamed("openai completion", "/v1/completions", body, "completion", "completion_stream")

    def responses(self) -> ChaosRequest:
        body = {"model": self.model(), "input": self.prompt(), "max_output_tokens": self.num_tokens(),
                "temperature": 0}
        return self._streamed("responses", "/v1/responses", body, "responses", "responses_stream")

    def messages(self) -> ChaosRequest:
        body = {"model": self.model(), "messages": self.messages_list(), "max_tokens": self.num_tokens(),
                "temperature": 0}
        return self._streamed("messages", "/v1/messages", body, "messages", "messages_stream")

    def ollama_chat(self) -> ChaosRequest:
        body = {"model": self.model(), "messages": self.messages_list(), "options": self.ollama_options()}
        return self._streamed("ollama", "/api/chat", body, "ollama", "ollama_stream")

    def ollama_generate(self) -> ChaosRequest:
        body = {"model": self.model(), "prompt": self.prompt(), "options": self.ollama_options()}
        return self._streamed("ollama", "/api/generate", body, "ollama", "ollama_stream")

    def ollama_options(self) -> JsonObject:
        return {"num_predict": self.num_tokens(), "temperature": 0}

    def embedding(self) -> ChaosRequest:
        if self._random.random() < 0.5:
            return ChaosRequest("embeddings", "/v1/embeddings",
                                {"model": MODEL, "input": [self.prompt() for _ in range(4)]}, "plain")
        return ChaosRequest("embeddings", "/embed", {"inputs": self.prompt()}, "plain")

    def tokenize(self) -> ChaosRequest:
        return ChaosRequest("tokenize", "/tokenize", {"inputs": self.prompt()}, "plain")

    def _streamed(self, dialect: str, path: str, body: JsonObject, whole: AnswerFormat,
                  streamed: AnswerFormat) -> ChaosRequest:
        is_streamed = self.is_streamed()
        return ChaosRequest(dialect, path, body | {"stream": is_streamed}, streamed if is_streamed else whole)


def draw_requests(random: Random, num_requests: int) -> list[ChaosRequest]:
    drawer = RequestDrawer(random)
    return [drawer.draw() for _ in range(num_requests)]
