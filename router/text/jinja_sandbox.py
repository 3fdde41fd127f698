"""Sandbox for chat templates, jinja2 programs written by others. Bounded are the output; every text, list and number
that results from arithmetic; ranges (100,000, by jinja2's sandbox); and the CPU time, checked in every iteration, call,
and item of `map`, `select` and similar filters. The work inside a single filter or method is bounded by the process in
which servers render (`chat_template_client.py`)."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from time import thread_time
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from router.errors import ChatTemplateFailed

MAX_CHARACTERS = 10_000_000  # more than the longest context of any model
CHARACTERS_PER_BIT = 1000  # characters that one bit of an integer counts as, since arithmetic on long integers is slow
# that a render may allocate, in a process of its own (chat_template_process.py)
MAX_MEMORY_BYTES = 256 * 1024 * 1024
TOO_MUCH_MEMORY = f"it takes more than {MAX_MEMORY_BYTES // 1024 ** 2} MiB of memory; send less"
MAX_CPU_SECONDS = 0.5  # of CPU time, so that a client gets the error within a second
# context variable of the deadline; not an identifier, so no template can use it
DEADLINE_VARIABLE = "the end of its time"


class SandboxedTemplate:
    """Template, compiled on first use; thread-safe. All errors, also of syntax, are raised as ChatTemplateFailed."""

    def __init__(self, source: str) -> None:
        self._source = source

    def render(self, variables: Mapping[str, Any], deadline: float) -> str:
        """Render with these variables; `deadline` comes from `new_deadline`."""
        template, _ = self._compiled
        pieces, num_characters = list[str](), 0
        try:
            for piece in template.generate({**variables, DEADLINE_VARIABLE: deadline}):
                check_size(num_characters := num_characters + len(piece))
                pieces.append(piece)
        except ChatTemplateFailed:
            raise
        except Exception as error:  # a template written by others may raise anything
            raise to_template_error(error) from None
        return "".join(pieces)

    def uses_variable(self, variable: str) -> bool:
        return variable in self._compiled[1]

    @cached_property
    def _compiled(self) -> tuple[Template, frozenset[str]]:
        """The compiled template, and the names of its variables."""
        sandbox = TemplateSandbox()
        try:
            tree = sandbox.parse(self._source)
            variables = frozenset(name.name for name in tree.find_all(nodes.Name))
            return sandbox.from_string(CheckInserter().visit(tree)), variables
        except Exception as error:
            raise to_template_error(error) from None


def new_deadline() -> float:
    """Return the deadline of a run that begins now, in CPU time of this thread."""
    return thread_time() + MAX_CPU_SECONDS


class GenerationTag(Extension):
    """Extension for `{% generation %}`, which marks a model's answers for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def loop_checkpoint() -> None:
    """Do nothing. Templates call this in every iteration of a loop, so that `TemplateSandbox.call` checks the time."""


def concat_strings(*parts: Any) -> str:
    texts = list(map(str, parts))
    check_size(sum(map(len, texts)))
    return "".join(texts)


class SafeNamespace(Namespace):
    """Jinja2's `namespace` without attributes that are special in Python: it could pass for another type."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            check_attribute_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        check_attribute_name(name)
        super().__setitem__(name, value)


class DictFactory:
    """Replacement of `dict` in templates: through the type itself, templates could modify their arguments."""

    fromkeys = staticmethod(dict.fromkeys)

    def __call__(self, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment with the functions that transformers provides to templates, and with bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})
    loop_checkpoint, concat_strings = staticmethod(loop_checkpoint), staticmethod(concat_strings)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self.filters["tojson"] = tojson
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=DictFactory(),
                            namespace=SafeNamespace)
        del self.globals["lipsum"]  # makes texts of any length in one call

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        check_time(context)
        return function is loop_checkpoint or super().call(context, function, *args, **kwargs)

    def call_filter(self, name: str, value: Any, args: Sequence[Any] | None = None,  # noqa: PLR0917 - jinja2's
                    kwargs: Mapping[str, Any] | None = None, context: Context | None = None,
                    eval_ctx: nodes.EvalContext | None = None) -> Any:
        """Check the time for one item of `map` or `select`. A filter or test used directly is not called this way."""
        check_time(context)
        return super().call_filter(name, value, args, kwargs, context, eval_ctx)

    def call_test(self, name: str, value: Any, args: Sequence[Any] | None = None,  # noqa: PLR0917 - likewise
                  kwargs: Mapping[str, Any] | None = None, context: Context | None = None,
                  eval_ctx: nodes.EvalContext | None = None) -> Any:
        check_time(context)
        return super().call_test(name, value, args, kwargs, context, eval_ctx)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_size(estimate_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)


class CheckInserter(NodeTransformer):
    """Transformer of a parsed template that makes loops and concatenations call the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja2's names
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(make_call_node(node, "loop_checkpoint"), lineno=node.lineno))
        if node.test is not None:
            node.test = nodes.And(make_call_node(node, "loop_checkpoint"), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return make_call_node(node, "concat_strings", node.nodes)


def make_call_node(node: nodes.Node, function_name: str, args: list[nodes.Expr] | None = None) -> nodes.Call:
    """Return the node of a call of one of the sandbox's own functions."""
    function = nodes.EnvironmentAttribute(function_name, lineno=node.lineno)
    return nodes.Call(function, args or [], [], None, None, lineno=node.lineno)


def estimate_result_size(operator: str, left: Any, right: Any) -> int:
    """Return the size of an operation's result in characters or entries; 0 if it cannot grow."""
    match operator, left, right:
        case "**", int(), int():
            return left.bit_length() * right * CHARACTERS_PER_BIT
        case "*", int(), int():
            return (left.bit_length() + right.bit_length()) * CHARACTERS_PER_BIT
        case "*", int(), _:
            return left * value_length(right)
        case "*", _, int():
            return value_length(left) * right
    return value_length(left) + value_length(right)


def value_length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise ChatTemplateFailed(f"it would make more than {MAX_CHARACTERS} characters of these messages; send less")


def check_time(context: Context | None) -> None:
    assert context is not None
    if thread_time() > context.parent[DEADLINE_VARIABLE]:
        raise ChatTemplateFailed(f"it took more than {MAX_CPU_SECONDS:g} s of the processor; send fewer messages")


def check_attribute_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute that begins with an underscore, such as {name!r}")


def raise_exception(message: object) -> None:
    """Raise ChatTemplateFailed. Templates call this to reject messages."""
    raise ChatTemplateFailed(collapse_whitespace(str(message)))


def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
           separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Return JSON without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(date_format: str) -> str:
    return datetime.now().strftime(date_format)  # noqa: DTZ005 - the server's local time


def to_template_error(error: Exception) -> ChatTemplateFailed:
    if isinstance(error, MemoryError):
        return ChatTemplateFailed(TOO_MUCH_MEMORY)
    return ChatTemplateFailed(collapse_whitespace(f"{type(error).__name__}: {error}"))


def collapse_whitespace(text: str) -> str:
    return " ".join(text.split())
