"""Chat templates: render the messages of a chat into the text of a prompt.

A template comes with the model or from the operator, never from a client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.text.jinja_sandbox import Program, end_of_time, tojson
from router.text.response_parser import Shape, opening, shape_of

GOES_ON = "77007700770077007700"  # marks the end of a partial answer while rendering; no template changes digits
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # keys of the reasoning in templates, as in transformers
# Template of the simulated model.
PLAIN = ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}")
# Instruction for models whose template does not render tools.
HOW_TO_CALL = ("If a call of one of these functions helps, answer with nothing but JSON that has its `name` and its "
               "`arguments`. Otherwise answer as usual.")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of a chat, in order, and the tools that the model may call.

    A message has `role`, `content` and further keys that templates may use. `tool_prompt` is the instruction that
    explains the tools to the model; empty for the template's own, or HOW_TO_CALL.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_prompt: str = ""
    must_call: bool = False  # the answer is the JSON of a call; the text that precedes it is part of the prompt


class ChatTemplate:
    """Chat template; thread-safe.

    `special_tokens` are the texts of the tokens that templates use by name, such as `bos_token`. `shape` is the format
    of the model's answers, by default derived from the template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], shape: Shape | None = None) -> None:
        self._program = Program(source)
        self._special_tokens = special_tokens
        self.shape = shape or shape_of(source)
        self._opening = opening(self.shape, source)

    def render(self, conversation: Conversation) -> str:
        """Return the prompt up to the beginning of the answer. Raises TemplateFailed.

        If the last message is a partial answer (`is_begun`), the prompt ends with it, and the answer continues it.
        """
        prompt = self._prompt(self._with_tools_in_text(conversation))
        return prompt + self._opening if conversation.must_call else prompt

    def _prompt(self, conversation: Conversation) -> str:
        """Render; after a partial answer, cut off what the template appends to it, and trailing whitespace."""
        end = end_of_time()
        if is_begun(conversation.messages):
            *others, last = conversation.messages
            marked = replace(conversation, messages=(*others, {**last, "content": last["content"] + GOES_ON}))
            prompt, found, _ = self._text(marked, end, goes_on=True).rpartition(GOES_ON)
            if found:
                return prompt.replace(GOES_ON, "").rstrip()  # some templates render a message more than once
        return self._text(conversation, end)

    def _with_tools_in_text(self, conversation: Conversation) -> Conversation:
        """Append to the last message what the template does not render: the tools (if it takes none) and `tool_prompt`.

        The format is that of text-generation-inference.
        """
        if not conversation.tools:
            return conversation
        takes_tools = self._program.names("tools")
        if takes_tools and not conversation.tool_prompt:
            return conversation
        listed = "" if takes_tools else tojson([dict(tool) for tool in conversation.tools]) + "\n"
        *others, last = conversation.messages
        text = f"{last.get('content') or ''}\n---\n{listed}{conversation.tool_prompt or HOW_TO_CALL}"
        return replace(conversation, messages=(*others, {**last, "content": text}))

    def _text(self, conversation: Conversation, end: float, *, goes_on: bool = False) -> str:
        """Run the template with the variables that transformers passes."""
        return self._program.run({
            **self._special_tokens,
            "messages": [as_templates_take(message) for message in conversation.messages],
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": None,
            "add_generation_prompt": not goes_on,
        }, end)


def as_templates_take(message: Message) -> dict[str, Any]:
    """Return a message without null fields, and with its reasoning under the keys that templates use."""
    given = {name: value for name, value in message.items() if value is not None}
    thoughts = next((given[name] for name in THOUGHTS if name in given), None)
    return given if thoughts is None else {"thinking": thoughts, **given, "reasoning_content": thoughts}


def is_begun(messages: Sequence[Message]) -> bool:
    """Return whether the last message is a partial answer, which the model continues."""
    last = messages[-1] if messages else {}
    text = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else None
    return isinstance(text, str) and bool(text.strip())


def plain_template() -> ChatTemplate:
    """Return the chat template of the simulated model."""
    return ChatTemplate(PLAIN, {})
