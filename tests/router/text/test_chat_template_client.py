"""Tests of router/text/chat_template_client.py and its process: hostile templates, deaths, and the
end of the process."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import process_time

import pytest

from router.config import RouterConfig
from router.errors import ChatTemplateFailed, Overloaded
from router.text import chat_template_client
from router.text.chat_template import ChatTemplate, Conversation, simulated_model_template
from router.text.chat_template_client import IsolatedChatTemplate
from router.text.output_formats import FORMAT_BY_TEMPLATE_MARKER

pytestmark = pytest.mark.slow
CHAT = Conversation(({"role": "user", "content": "hé \ud83d"}, {"role": "assistant", "content": None}),
                    ({"function": {"name": "b", "a": [1, 1.5, None]}},))
UNBOUNDED_TEMPLATES = {
    "a number as text": "{{ '%1000000000d' % 1 }}",
    "a wide format": "{{ '{:1000000000}'.format(1) }}",
    "padding": "{{ [1] | batch(100000000, 'x') | list | length }}",
    "a nested list as text": "{% set ns = namespace(x=[messages]) %}{% for a in range(40) %}"
                             "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | string | length }}",
}


@contextmanager
def isolate(source: str | ChatTemplate, max_characters: int = 10_000_000) -> Iterator[IsolatedChatTemplate]:
    template = IsolatedChatTemplate(ChatTemplate(source, {"bos_token": "<s>"}) if isinstance(source, str) else source,
                                    1, max_characters)
    try:
        yield template
    finally:
        template.close()


def get_error(template: ChatTemplate) -> str:
    with pytest.raises(ChatTemplateFailed) as failed:
        template.render(CHAT)
    return str(failed.value)


def test_chat_is_rendered_as_in_the_own_process() -> None:
    source = "{{ bos_token }}{{ [tools, messages] | tojson }}{{ messages[0].content }}{{ add_generation_prompt }}"
    with isolate(source) as template:
        assert template.render(CHAT) == ChatTemplate(source, {"bos_token": "<s>"}).render(CHAT)
        assert template.takes_tools
    with isolate(simulated_model_template()) as template:
        assert template.render(CHAT) == simulated_model_template().render(CHAT)
        assert not template.takes_tools


@pytest.mark.parametrize("name", UNBOUNDED_TEMPLATES)
def test_work_inside_one_filter_is_bounded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A template's `%` took 18.6 seconds of the router's processor and 3.8 GB of its memory."""
    monkeypatch.setattr(chat_template_client, "MAX_RENDER_SECONDS", 0.4)
    with isolate("{% if messages[0].content != 'fine' %}" + UNBOUNDED_TEMPLATES[name] + "{% endif %}ok") as template:
        started = process_time()
        assert any(limit in get_error(template) for limit in (
            "more than 256 MiB of memory", "s of the processor", "more than 0.4 seconds to render"))
        assert process_time() - started < 0.5
        assert template.render(Conversation(({"role": "user", "content": "fine"},))) == "ok"


@pytest.mark.parametrize("marker", FORMAT_BY_TEMPLATE_MARKER)
def test_format_of_answers_is_that_of_the_template(marker: str) -> None:
    """The process finds the format from the template, as the router does: formats hold what is no JSON."""
    source = f"{{{{ messages | length }}}}{marker}<think>"
    own = ChatTemplate(source, {"bos_token": "<s>"})
    conversation = replace(CHAT, must_call_tool=True)
    with isolate(source) as template:
        assert template.output_format == own.output_format
        assert template.render(conversation) == own.render(conversation)


def test_template_rejects_messages_with_its_own_words() -> None:
    with isolate("{{ raise_exception('roles must alternate') }}") as template:
        assert get_error(template) == "roles must alternate"
    with isolate("{{ raise_exception('a' * 1000000) }}") as template:
        assert get_error(template) == "a" * 300


def test_length_of_a_prompt_is_bounded() -> None:
    with isolate("{{ 'x' * 101 }}", max_characters=100) as template:
        assert get_error(template).startswith("it makes 101 characters of these messages, and at most 100 could fit")


def test_longest_prompt_is_that_of_the_longest_body_or_of_all_tokens() -> None:
    config = RouterConfig(payload_limit=1000)
    for tokens, characters in ((10, 2000), (100, 6400), (10**9, 10_000_000)):
        with isolate("ok") as template:
            template.limit_prompts(config, tokens)
            assert template.max_characters == characters


def test_limit_holds_for_a_process_that_runs_already() -> None:
    with isolate("{{ 'x' * 2001 }}") as template:
        template.warm_up()
        template.limit_prompts(RouterConfig(payload_limit=1000), 10)
        assert get_error(template).endswith("it makes 2001 characters of these messages, and at most 2000 could fit; "
                                            "send less")


def test_all_processes_are_there_after_the_warm_up() -> None:
    template = IsolatedChatTemplate(ChatTemplate("ok", {}), 2)
    try:
        template.warm_up()
        assert all(worker.process is not None for worker in template._workers)
        assert template.render(CHAT) == "ok"
    finally:
        template.close()


def test_process_that_was_killed_is_replaced_unnoticed() -> None:
    with isolate("ok") as template:
        for _ in range(2):
            assert template.render(CHAT) == "ok"
            process = template._workers[0].process
            assert process is not None
            process._process.kill()
        assert template.render(CHAT) == "ok"


def test_stalled_process_is_no_fault_of_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_client, "MAX_RENDER_SECONDS", 0.1)
    monkeypatch.setattr(chat_template_client, "MAX_STALLED_SECONDS", 0.2)
    with isolate("ok") as template:
        template.warm_up()
        process = template._workers[0].process
        assert process is not None
        os.kill(process._process.pid, signal.SIGSTOP)
        with pytest.raises(Overloaded, match="this machine is busy; try again"):
            template.render(CHAT)


def test_process_gets_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    with isolate("ok") as template:
        template.warm_up()
        process = template._workers[0].process
        assert process is not None
        environment = Path(f"/proc/{process._process.pid}/environ").read_text()
    assert "PATH=" in environment
    assert "secret" not in environment


def test_chat_after_a_killed_process_gets_one_that_is_there() -> None:
    template = IsolatedChatTemplate(ChatTemplate("ok", {}), 2)
    try:
        first, second = template._idle_workers.take(), template._idle_workers.take()
        for worker in (first, second):
            worker.send_request({}, 10, 10)
        first.close_process()
        template._idle_workers.put(second)
        template._idle_workers.put(first)
        template.render(CHAT)
        assert first.process is None
    finally:
        template.close()


def test_closed_template_renders_nothing_and_leaves_no_process() -> None:
    with isolate("ok") as template:
        template.render(CHAT)
    assert template._workers[0].process is None
    with pytest.raises(Overloaded, match="the server is stopping"):
        template.render(CHAT)


def test_process_ends_with_a_killed_parent() -> None:
    """The parent kills itself while its renderer waits; the renderer notices the end of the socket."""
    program = ("import os; from router.text.chat_template_client import *; "
               "from router.text.chat_template import simulated_model_template as s; "
               "t = IsolatedChatTemplate(s(), 1); t.warm_up(); "
               "print(t._workers[0].process._process.pid, flush=True); os.kill(os.getpid(), 9)")
    parent = subprocess.run([sys.executable, "-P", "-O", "-c", program], capture_output=True, text=True, check=False)
    pid_file = os.pidfd_open(int(parent.stdout)) if os.path.exists(f"/proc/{int(parent.stdout)}") else None
    if pid_file is not None:
        assert select.select([pid_file], [], [], 5)[0]
        os.close(pid_file)


def test_rendering_process_is_isolated_from_the_network_where_the_system_allows_it() -> None:
    program = "import sys; from router.processes.network_isolation import leave_network; sys.exit(not leave_network())"
    is_allowed = subprocess.run([sys.executable, "-Pc", program], check=False).returncode == 0
    with isolate("{{ messages }}") as template:
        template.render(CHAT)
        process = template._workers[0].process
        assert process is not None
        namespaces = {os.readlink(f"/proc/{pid}/ns/net") for pid in (process._process.pid, "self")}
    assert len(namespaces) == 1 + is_allowed
