"""Sandbox for chat templates: jinja2 programs written by others, run within bounds.

Bounded are the length of the output, and of every intermediate text, list and number that results from an addition,
concatenation, multiplication or power (MOST_CHARACTERS); the length of a range (100,000, by jinja2's sandbox); and the
CPU time (MOST_SECONDS), which is checked in every iteration of a loop, at every call, and for every item that `map`,
`select` and similar filters process. The work inside a single filter or method is not bounded.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from time import thread_time
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from router.errors import TemplateFailed

MOST_CHARACTERS = 10_000_000  # more than the longest context of any model
BIT = 1000  # characters that one bit of an integer counts as, since arithmetic on long integers is slow
MOST_SECONDS = 0.5  # of CPU time, so that a client gets the error within a second
END = "the end of its time"  # context variable of the deadline; not an identifier, so no template can use it


class Program:
    """Template, compiled on first use; thread-safe. All errors, also those of syntax, are raised as TemplateFailed."""

    def __init__(self, source: str) -> None:
        self._source = source

    def run(self, given: Mapping[str, Any], end: float) -> str:
        """Render with the variables `given`; `end` is the deadline, from `end_of_time`."""
        try:
            return "".join(bounded(self._template.generate({**given, END: end})))
        except TemplateFailed:
            raise
        except Exception as error:  # a template written by others may raise anything
            raise failed(error) from None

    def names(self, variable: str) -> bool:
        return variable in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        try:
            return frozenset(name.name for name in Sandbox().parse(self._source).find_all(nodes.Name))
        except Exception as error:
            raise failed(error) from None

    @cached_property
    def _template(self) -> Template:
        return Sandbox().program(self._source)


def end_of_time() -> float:
    """Return the deadline of a run that begins now, in CPU time of this thread."""
    return thread_time() + MOST_SECONDS


def bounded(pieces: Iterable[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        check_size(length)
        yield piece


class Generation(Extension):
    """Extension for `{% generation %}`, which marks a model's answers for training and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def next_pass() -> None:
    """Do nothing. Templates call this in every iteration of a loop, so that `Sandbox.call` checks the time."""


def joined(*parts: Any) -> str:
    texts = list(map(str, parts))
    check_size(sum(map(len, texts)))
    return "".join(texts)


class Named(Namespace):
    """Jinja2's `namespace` without attributes that are special in Python: it could pass for another type."""

    def __init__(self, /, *args: Any, **given: Any) -> None:
        named = dict(*args, **given)
        for name in named:
            check_name(name)
        super().__init__(named)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        super().__setitem__(name, value)


class Dictionary:
    """Replacement of `dict` in templates: through the type itself, templates could modify their arguments."""

    fromkeys = staticmethod(dict.fromkeys)

    def __call__(self, /, *args: Any, **given: Any) -> dict[Any, Any]:
        return dict(*args, **given)


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment with the functions that transformers provides to templates, and with bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})
    next_pass, joined = staticmethod(next_pass), staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        self.filters["tojson"] = tojson
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now, dict=Dictionary(),
                            namespace=Named)
        del self.globals["lipsum"]  # makes texts of any length in one call

    def program(self, source: str) -> Template:
        return self.from_string(Watched().visit(self.parse(source)))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        check_time(context)
        return function is next_pass or super().call(context, function, *args, **kwargs)

    def call_filter(self, name: str, value: Any, args: Sequence[Any] | None = None,  # noqa: PLR0917 - jinja2's
                    kwargs: Mapping[str, Any] | None = None, context: Context | None = None,
                    eval_ctx: EvalContext | None = None) -> Any:
        """Check the time for one item of `map` or `select`. A filter or test used directly is not called this way."""
        check_time(context)
        return super().call_filter(name, value, args, kwargs, context, eval_ctx)

    def call_test(self, name: str, value: Any, args: Sequence[Any] | None = None,  # noqa: PLR0917 - likewise
                  kwargs: Mapping[str, Any] | None = None, context: Context | None = None,
                  eval_ctx: EvalContext | None = None) -> Any:
        check_time(context)
        return super().call_test(name, value, args, kwargs, context, eval_ctx)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_size(size_of_result(operator, left, right))
        return super().call_binop(context, operator, left, right)


class Watched(NodeTransformer):
    """Transformer of a parsed template that makes loops and concatenations call the sandbox."""

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
    """Return the node of a call of one of the sandbox's own functions."""
    function = nodes.EnvironmentAttribute(name, lineno=place.lineno)
    return nodes.Call(function, args or [], [], None, None, lineno=place.lineno)


def size_of_result(operator: str, left: Any, right: Any) -> int:
    """Return the size of an operation's result in characters or entries; 0 if it cannot grow."""
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


def check_time(context: Context | None) -> None:
    assert context is not None
    if thread_time() > context.parent[END]:
        raise TemplateFailed(f"it took more than {MOST_SECONDS:g} s of the processor; send fewer messages")


def check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute that begins with an underscore, such as {name!r}")


def raise_exception(message: object) -> None:
    """Raise TemplateFailed. Templates call this to reject messages."""
    raise TemplateFailed(told(str(message)))


def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
           separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Return JSON without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the server's local time


def failed(error: Exception) -> TemplateFailed:
    return TemplateFailed(told(f"{type(error).__name__}: {error}"))


def told(text: str) -> str:
    return " ".join(text.split())
