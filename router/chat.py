"""From the messages of a chat to the text of a prompt, by the template that comes with the model.

A template is a program that others wrote, so it runs in jinja2's sandbox, and is bounded: the length of the prompt, and
of every text, list and number on the way that comes of adding, joining, multiplying or raising to a power
(MOST_CHARACTERS); the length of a range (100,000, by the sandbox); and the time of the processor (MOST_SECONDS), which
is looked at in every pass of a loop and at every call. What one filter or method does by itself is not looked at.
Clients bring messages, never templates. Knows nothing of tokens, and not what messages mean.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from time import thread_time
from typing import Any

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from router.errors import TemplateFailed
from router.speech import Shape, opening, shape_of

MOST_CHARACTERS = 10_000_000  # more than the longest context of any model
BIT = 1000  # a bit of a number counts as so many characters: to compute with long ones takes long
MOST_SECONDS = 1.0
MOST_TOLD = 500  # characters of what a template says went wrong
END = "the end of its time"  # a variable of the template that no template can name
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
        self._source = source
        self._special_tokens = special_tokens
        self.shape = shape or shape_of(source)
        self._opening = opening(self.shape, source)

    def render(self, conversation: Conversation) -> str:
        """The prompt up to where the answer begins, or goes on: a last message of the assistant is not over. Raises
        TemplateFailed."""
        try:
            conversation = self._with_tools_in_text(conversation)
            prompt = up_to_answer("".join(self._pieces(conversation)), conversation.messages)
            return prompt + self._opening if conversation.must_call else prompt
        except TemplateFailed:
            raise
        except Exception as error:  # of a program that others wrote
            raise TemplateFailed(told(f"{type(error).__name__}: {error}")) from None

    @cached_property
    def _template(self) -> Template:
        return Sandbox().program(self._source)

    @cached_property
    def _takes_tools(self) -> bool:
        return any(name.name == "tools" for name in Sandbox().parse(self._source).find_all(nodes.Name))

    def _with_tools_in_text(self, conversation: Conversation) -> Conversation:
        """A template that has no place for tools gets them at the end of the last message, as from
        text-generation-inference."""
        if not conversation.tools or (self._takes_tools and not conversation.tool_prompt):
            return conversation
        listed = "" if self._takes_tools else tojson([dict(tool) for tool in conversation.tools]) + "\n"
        *others, last = conversation.messages
        text = f"{last.get('content') or ''}\n---\n{listed}{conversation.tool_prompt or HOW_TO_CALL}"
        return replace(conversation, messages=(*others, {**last, "content": text}))

    def _pieces(self, conversation: Conversation) -> Iterator[str]:
        length = 0
        for piece in self._template.generate(self._variables(conversation)):
            length += len(piece)
            check_size(length)
            yield piece

    def _variables(self, conversation: Conversation) -> dict[str, Any]:
        """As transformers gives them."""
        return {
            **self._special_tokens,
            "messages": [dict(message) for message in conversation.messages],
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": None,
            "add_generation_prompt": True,
            END: thread_time() + MOST_SECONDS,
        }


def up_to_answer(prompt: str, messages: Sequence[Message]) -> str:
    """What a template puts behind the beginning of an answer is left out, and so are blanks."""
    last = messages[-1] if messages else {}
    begun = last.get("content") if last.get("role") == "assistant" and not last.get("tool_calls") else None
    if not begun or not begun.strip():
        return prompt
    before, found, _ = prompt.rpartition(begun.strip())
    return (before + found).rstrip() if found else prompt


def plain_template() -> ChatTemplate:
    """Of the simulated model."""
    return ChatTemplate(PLAIN, {})


class Generation(Extension):
    """`{% generation %}` marks what a model said, for training. Here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def next_pass() -> None:
    """Called at the beginning of every pass of a loop, for what `Sandbox.call` does before."""


def joined(*parts: Any) -> str:
    texts = list(map(str, parts))
    check_size(sum(map(len, texts)))
    return "".join(texts)


class Sandbox(ImmutableSandboxedEnvironment):
    """With the functions that transformers gives to templates, and with bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})
    next_pass, joined = staticmethod(next_pass), staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        self.filters["tojson"] = tojson
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
        del self.globals["lipsum"]  # makes texts of any length in one call

    def program(self, source: str) -> Template:
        return self.from_string(Watched().visit(self.parse(source)))

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        if thread_time() > context.parent[END]:
            raise TemplateFailed(f"it took more than {MOST_SECONDS:g} s of the processor; send fewer messages")
        return function is next_pass or super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_size(size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)


class Watched(NodeTransformer):
    """A parsed template, so changed that loops and joins pass through the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's names
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(called(node, "next_pass"), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(called(node, "next_pass"), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return called(node, "joined", node.nodes)


def called(place: nodes.Node, name: str, args: list[nodes.Expr] | None = None) -> nodes.Call:
    """A call of one of the sandbox's own functions."""
    function = nodes.EnvironmentAttribute(name, lineno=place.lineno)
    return nodes.Call(function, args or [], [], None, None, lineno=place.lineno)


def size_of_result(operator: str, left: Any, right: Any) -> int:
    """In characters or entries; 0 where nothing can grow."""
    match operator, left, right:
        case "**", int(), int():
            return left.bit_length() * right * BIT
        case "*", int(), int():
            return (left.bit_length() + right.bit_length()) * BIT
        case "*", int(), _:
            return left * length(right)
        case "*", _, int():
            return length(left) * right
    return length(left) + length(right)


def length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise TemplateFailed(f"it would make more than {MOST_CHARACTERS} characters of these messages; send less")


def raise_exception(message: object) -> None:
    """How a template says that it does not take these messages."""
    raise TemplateFailed(told(str(message)))


def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
           separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the day where the server stands


def told(text: str) -> str:
    return " ".join(text.split())[:MOST_TOLD]
