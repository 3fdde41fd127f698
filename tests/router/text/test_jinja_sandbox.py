"""Sandbox of chat templates: allowed and forbidden features, and limits of time and memory."""

import json
import threading
from typing import Any

import pytest

from router.errors import ChatTemplateFailed
from router.text.jinja_sandbox import MAX_CHARACTERS, SandboxedTemplate, new_deadline

MESSAGES = [{"role": "user", "content": "hi"}]


def run_template(source: str, messages: Any = MESSAGES) -> str:
    return SandboxedTemplate(source).render({"messages": messages}, new_deadline())


def get_template_error(source: str) -> str:
    with pytest.raises(ChatTemplateFailed) as failed:
        run_template(source)
    return str(failed.value)


def test_template_variables_are_known_before_it_runs() -> None:
    program = SandboxedTemplate("{% if loom %}{{ weft }}{% endif %}")
    assert (program.uses_variable("weft"), program.uses_variable("warp")) == (True, False)
    with pytest.raises(ChatTemplateFailed, match="unknown tag"):
        SandboxedTemplate("{% loom %}").uses_variable("weft")


@pytest.mark.parametrize("name", ["function", "context", "name", "value", "args"])
def test_macro_arguments_may_have_any_name(name: str) -> None:
    assert run_template(f"{{% macro told({name}) %}}{{{{ {name} }}}}{{% endmacro %}}{{{{ told({name}=3) }}}}") == "3"


def test_tojson_does_not_escape_html() -> None:
    assert run_template("{{ messages[0].content | tojson }}",
                        [{"content": "<é>"}]) == json.dumps("<é>", ensure_ascii=False)


def test_template_can_reject_messages_with_its_own_text() -> None:
    assert get_template_error("{{ raise_exception('roles  must\nalternate') }}") == "roles must alternate"


@pytest.mark.parametrize(("source", "message"), [
    ("{% loom %}", "TemplateSyntaxError: Encountered unknown tag 'loom'."),
    ("{{ loom.threads }}", "UndefinedError: 'loom' is undefined"),
    ("{{ messages[0].content + 1 }}", "TypeError: "),
    ("{% macro more() %}{{ more() }}{% endmacro %}{{ more() }}", "RecursionError: "),
    ("{{ lipsum(1) }}", "UndefinedError: 'lipsum' is undefined"),
    ("{% include 'loom' %}", "TypeError: no loader"),
])
def test_template_error_is_reported(source: str, message: str) -> None:
    assert get_template_error(source).startswith(message)


@pytest.mark.parametrize("source", [
    "{{ ''.__class__.x }}", "{{ '{0.__class__.x}'.format('') }}", "{{ (''|attr('__class__')).x }}",
    "{{ raise_exception.__globals__.x }}", "{{ self._TemplateReference__context.x }}", "{{ dict.mro() }}",
    "{{ messages.append(1) }}", "{{ messages[0].update(role='system') }}", "{{ dict.update(messages[0], role='x') }}",
    "{{ (messages | map('attr', '__class__') | first).x }}", "{{ cycler.__init__.__globals__.os.x }}",
    "{{ namespace(__class__=1) }}", "{% set n = namespace() %}{% set n.__class__ = 1 %}", "{{ ''['__class__'].x }}",
])
def test_template_cannot_escape_the_sandbox(source: str) -> None:
    assert get_template_error(source).startswith(("SecurityError: ", "UndefinedError: '"))


# ---------------------------------------------------------------------------------------------------------------------
# Bounds


@pytest.mark.parametrize("source", [
    "{{ 'x' * 1000000000 }}", "{{ 1000000000 * 'x' }}", "{{ [1] * 1000000000 }}", "{{ 9 ** (9 ** 9) }}",
    "{% for a in range(20000) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for a in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
])
def test_output_that_grows_too_large_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """On a machine that is busy the largest lists took more time than a template has."""
    monkeypatch.setattr("router.text.jinja_sandbox.MAX_CPU_SECONDS", 600.0)
    assert get_template_error(source).startswith(f"it would make more than {MAX_CHARACTERS} characters")


def test_range_size_is_limited() -> None:
    assert "Range too big" in get_template_error("{{ range(100001) }}")


@pytest.mark.parametrize("source", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(90) }}",
    "{% for a in [range(9)] recursive %}{% if loop.depth < 90 %}{{ loop([a]) }}{{ loop([a]) }}{% endif %}{% endfor %}",
    "{{ range(99999) | select('in', range(99999) | list) | list }}",
    "{{ range(99999) | reject('in', range(99999) | list) | list }}",
    "{{ range(9999) | map('replace', '1', 'x' * 9999) | map('replace', 'x', 'y' * 999) | map('length') | sum }}",
])
def test_endless_template_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr("router.text.jinja_sandbox.MAX_CPU_SECONDS", 0.01)
    assert get_template_error(source) == "it took more than 0.01 s of the processor; send fewer messages"


def test_cpu_time_is_counted_per_thread_and_run() -> None:
    program = SandboxedTemplate("{% for message in messages %}{{ message.content }}{% endfor %}")
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(program.render({"messages": MESSAGES}, new_deadline())))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["hi"] * 4
