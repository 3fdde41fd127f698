"""From the messages of a chat to the text of a prompt, by the template that comes with the model.

Clients bring messages, never templates. Knows nothing of tokens, and not what messages mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.sandbox import Program, end_of_time, tojson
from router.speech import Shape, opening, shape_of

GOES_ON = "77007700770077007700"  # behind an answer that has begun, while a template runs: all of them let digits be
THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # what templates call them, as transformers has it
# What the simulated model is asked with.
PLAIN = ("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}")
# What a model is told of tools when its template has no place for them.
HOW_TO_CALL = ("If a call of one of these functions helps, answer with nothing but JSON that has its `name` and its "
               "`arguments`. Otherwise answer as usual.")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a chat, in order: `role`, `content` and what else a client says that templates may ask for. With
    the tools that the model may call, and how it is told of them."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_prompt: str = ""
    must_call: bool = False  # the answer is the JSON of a call, and the prompt what stands before that


class ChatTemplate:
    """`special_tokens` are the texts that templates know by name, such as `bos_token`; `shape` is that of what the
    model says. May be used by many threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], shape: Shape | None = None) -> None:
        self._program = Program(source)
        self._special_tokens = special_tokens
        self.shape = shape or shape_of(source)
        self._opening = opening(self.shape, source)

    def render(self, conversation: Conversation) -> str:
        """The prompt up to where the answer begins, or goes on: a last message of the assistant is not over. Raises
        TemplateFailed."""
        prompt = self._prompt(self._with_tools_in_text(conversation))
        return prompt + self._opening if conversation.must_call else prompt

    def _prompt(self, conversation: Conversation) -> str:
        """What a template puts behind the beginning of an answer is left out, and so are blanks."""
        end = end_of_time()
        if is_begun(conversation.messages):
            *others, last = conversation.messages
            marked = replace(conversation, messages=(*others, {**last, "content": last["content"] + GOES_ON}))
            prompt, found, _ = self._text(marked, end, goes_on=True).rpartition(GOES_ON)
            if found:
                return prompt.replace(GOES_ON, "").rstrip()  # some templates repeat what was said
        return self._text(conversation, end)

    def _with_tools_in_text(self, conversation: Conversation) -> Conversation:
        """A template that has no place for tools gets them at the end of the last message, as from
        text-generation-inference."""
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
        """Given what transformers gives."""
        return self._program.run({
            **self._special_tokens,
            "messages": [as_templates_take(message) for message in conversation.messages],
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": None,
            "add_generation_prompt": not goes_on,
        }, end)


def as_templates_take(message: Message) -> dict[str, Any]:
    """Without what is null, and thoughts under every name that templates know."""
    given = {name: value for name, value in message.items() if value is not None}
    thoughts = next((given[name] for name in THOUGHTS if name in given), None)
    return given if thoughts is None else {"thinking": thoughts, **given, "reasoning_content": thoughts}


def is_begun(messages: Sequence[Message]) -> bool:
    """Whether the last message is the beginning of the answer."""
    last = messages[-1] if messages else {}
    text = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else None
    return isinstance(text, str) and bool(text.strip())


def plain_template() -> ChatTemplate:
    """Of the simulated model."""
    return ChatTemplate(PLAIN, {})
