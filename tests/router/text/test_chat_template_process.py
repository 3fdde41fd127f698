"""Tests of router/text/chat_template_process.py: the answers, without a process."""

import pytest

from router.text.chat_template import ChatTemplate
from router.text.chat_template_process import answer_request, make_template

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_template_is_that_of_the_first_line() -> None:
    template = make_template({"source": "{{ bos_token }}{{ tools }}", "special_tokens": {"bos_token": "<s>"},
                              "output_format": None})
    assert answer_request(template, {**CHAT, "max_characters": 99}) == {"prompt": "<s>None"}
    assert answer_request(template, {}) == {"takes_tools": True}


@pytest.mark.parametrize(("source", "reason"), [
    ("{{ raise_exception('no') }}", "no"), ("{% loom %}", "TemplateSyntaxError: Encountered unknown tag 'loom'."),
    ("{{ 'x' * 9 }}", "it makes 9 characters of these messages, and at most 8 could fit; send less")])
def test_failures_are_answered_with_a_reason(source: str, reason: str) -> None:
    assert answer_request(ChatTemplate(source, {}), {**CHAT, "max_characters": 8}) == {"failed": reason}
