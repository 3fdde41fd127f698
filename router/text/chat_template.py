"""Chat templates: render the messages of a chat into the text of a prompt. A template comes with the model or from the
operator, never from a client."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from router.text.jinja_sandbox import SandboxedTemplate, new_deadline, tojson
from router.text.output_formats import (
    NO_ANSWER_BEGINNING,
    AnswerBeginning,
    OutputFormat,
    ReasoningState,
    detect_output_format,
    find_begun_answer,
    find_reasoning_format,
    find_reasoning_state,
    get_tool_call_start,
)

# marks the end of a partial answer while rendering; no template changes digits
CONTINUATION_MARKER = "77007700770077007700"
# keys of the reasoning in templates, as in transformers
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Instruction for models whose template does not render tools.
DEFAULT_TOOL_PROMPT = (
    "If a call of one of these functions helps, answer with nothing but JSON that has its `name` and its "
    "`arguments`. Otherwise answer as usual.")

# Variables of templates that have a field of their own, or that the server sets.
RESERVED_TEMPLATE_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# Roles that a template compares with: `message['role'] == "tool"`, `role in ["tool", "ipython"]`.
ROLE_PATTERN = re.compile(r"""role["'\]]{0,2}\s{0,8}[!=]=\s{0,8}["']([\w-]{1,40})["']""")
ROLE_LIST_PATTERN = re.compile(r"""role["'\]]{0,2}\s{1,8}(?:not\s{1,8})?in\s{0,8}[\[(]([^\])]{1,400})""")
STRING_PATTERN = re.compile(r"""["']([\w-]{1,40})["']""")

ChatMessage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of a chat, in order, and the tools that the model may call. A message has `role`, `content` and further
    keys that templates may use. `tool_prompt` explains the tools; empty: the template's own, or DEFAULT_TOOL_PROMPT."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_prompt: str = ""
    must_call_tool: bool = False  # the answer is the JSON of a call
    # Whether reasoning may precede a required call; else the text that precedes its JSON is part of the prompt
    may_reason: bool = False
    template_variables: Mapping[str, Any] = field(default_factory=dict)  # further ones, such as `enable_thinking`
    adds_generation_prompt: bool = True
    # Whether the last message is a partial answer, to be continued; None: if it is an answer with text
    continues_answer: bool | None = None


class ChatTemplate:
    """Chat template; thread-safe. `special_tokens` are the texts of the tokens that templates use by name, such as
    `bos_token`. `output_format` is the format of the model's answers, by default derived from the template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str],
                 output_format: OutputFormat | None = None) -> None:
        self.source = source
        self._template = SandboxedTemplate(source)
        self.special_tokens = special_tokens
        self.given_output_format = output_format
        self.output_format = output_format or detect_output_format(source)
        self.reasoning_format = find_reasoning_format(self.output_format, source)
        self.tool_call_opening = get_tool_call_start(self.output_format, source)

    @cached_property
    def roles(self) -> frozenset[str]:
        """Roles of messages that the template compares with, such as `ipython`."""
        lists = ROLE_LIST_PATTERN.findall(self.source)
        return frozenset([*ROLE_PATTERN.findall(self.source), *STRING_PATTERN.findall(" ".join(lists))])

    @property
    def takes_tools(self) -> bool:
        """Whether the template renders tools. Raises ChatTemplateFailed."""
        return self._template.uses_variable("tools")

    def render(self, conversation: Conversation) -> str:
        """Return the prompt up to the beginning of the answer. Raises ChatTemplateFailed. A partial answer as the last
        message is continued: what the template appends to it is cut off, and so is trailing whitespace."""
        prompt = self._render_answer_beginning(self._add_tools_as_text(conversation))
        is_call_next = conversation.must_call_tool and (
            self.find_begun_answer(conversation, prompt).reasoning_state is ReasoningState.CLOSED)
        return prompt + self.tool_call_opening if is_call_next else prompt

    def close(self) -> None:
        """End what renders the template, if that is more than this object."""

    def find_begun_answer(self, conversation: Conversation, prompt: str) -> AnswerBeginning:
        """Return what a rendered prompt has begun of the answer. Grammar and parser of the answer follow from it."""
        may_reason = self.reasoning_format is not None and conversation.may_reason
        if self.output_format is None:
            return NO_ANSWER_BEGINNING
        if not (conversation.adds_generation_prompt or continues_last_answer(conversation)):
            return AnswerBeginning("", ReasoningState.POSSIBLE if may_reason else ReasoningState.CLOSED)
        return AnswerBeginning(
            find_begun_answer(self.output_format, prompt),
            find_reasoning_state(self.output_format, prompt) if may_reason else ReasoningState.CLOSED)

    def _render_answer_beginning(self, conversation: Conversation) -> str:
        deadline = new_deadline()
        if continues_last_answer(conversation):
            *earlier, last = conversation.messages
            messages = (*earlier, {**last, "content": last["content"] + CONTINUATION_MARKER})
            prompt, marker, _ = self._run_template(replace(conversation, messages=messages), deadline,
                                                   continues_answer=True).rpartition(CONTINUATION_MARKER)
            if marker:  # some templates render a message more than once
                return prompt.replace(CONTINUATION_MARKER, "").rstrip()
        return self._run_template(conversation, deadline)

    def _add_tools_as_text(self, conversation: Conversation) -> Conversation:
        """Append to the last message what the template does not render: the tools (if it takes none) and `tool_prompt`.
        The format is that of text-generation-inference."""
        if not conversation.tools:
            return conversation
        takes_tools = self.takes_tools
        if takes_tools and not conversation.tool_prompt:
            return conversation
        tools_json = "" if takes_tools else tojson([dict(tool) for tool in conversation.tools]) + "\n"
        *earlier, last = conversation.messages
        text = f"{last.get('content') or ''}\n---\n{tools_json}{conversation.tool_prompt or DEFAULT_TOOL_PROMPT}"
        return replace(conversation, messages=(*earlier, {**last, "content": text}))

    def _run_template(self, conversation: Conversation, deadline: float, *, continues_answer: bool = False) -> str:
        """Run the template with the variables that transformers passes."""
        return self._template.render({
            **self.special_tokens,
            **conversation.template_variables,
            "messages": [to_template_message(message) for message in conversation.messages],
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": None,
            "add_generation_prompt": conversation.adds_generation_prompt and not continues_answer,
        }, deadline)


def to_template_message(message: ChatMessage) -> dict[str, Any]:
    """Return a message without null fields, and with its reasoning under the keys that templates use."""
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in REASONING_KEYS if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def continues_last_answer(conversation: Conversation) -> bool:
    """Return whether the answer goes on with the text of the last message."""
    return conversation.continues_answer is not False and has_partial_answer(conversation.messages)


def has_partial_answer(messages: Sequence[ChatMessage]) -> bool:
    """Return whether the last message is a partial answer, which the model continues."""
    last = messages[-1] if messages else {}
    text = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else None
    return isinstance(text, str) and bool(text.strip())


def simulated_model_template() -> ChatTemplate:
    return ChatTemplate("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}assistant: {% endif %}", {})
