"""Messages as a prompt: what templates may use, what they may not, and that transformers renders the same."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from router.chat import HOW_TO_CALL, MOST_CHARACTERS, ChatTemplate, Conversation, plain_template
from router.errors import TemplateFailed
from router.model_files import read_chat_template, read_tokenizer
from router.tokenizer import byte_tokenizer

HELLO = ({"role": "user", "content": "hi"},)
TALK = (
    {"role": "system", "content": "You weave.\n"},
    {"role": "user", "content": "  <b>Über & unter</b>, \"織物\"?\n\n"},
    {"role": "assistant", "content": "Ja.<|end|> "},
    {"role": "user", "content": "<|begin|>again", "name": "warp"},
    {"role": "tool", "content": '{"threads": 3}', "tool_call_id": "a"},
)
CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a loom.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA = """{{ bos_token }}{% for message in messages %}
{% set content = '[' ~ message['role'] ~ ']' ~ message['content'] | trim %}
{{ content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}
"""
ZEPHYR = """{% for message in messages if message.role != 'system' %}
  {% if loop.index is odd %}{% continue %}{% endif %}
    {% generation %}{{ message | tojson }}{% set seen = true %}{% endgeneration %}{{ seen is defined }}
{% else %}nobody{% endfor %}
{% set ns = namespace(count=0) %}{% for message in messages[::-1] %}{% set ns.count = ns.count + 2 ** 3 %}{% endfor %}
{{ ns.count }}{{ tools is none }}{{ pad_token is defined }}{{ messages[-1].get('name', 'none') }}
{{ strftime_now('%Y') }}
{% macro shout(text) %}{{ text.upper() }}{% endmacro %}{{ shout(messages[0].content.split('.')[0]) }}
{{ messages | selectattr('role', 'eq', 'user') | map(attribute='content') | join('|') }}
{{ messages | tojson(indent=2) }}
"""


def rendered(source: str, messages: Any = HELLO, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(Conversation(tuple(messages)))


def refusal(source: str) -> str:
    with pytest.raises(TemplateFailed) as failed:
        rendered(source)
    return str(failed.value)


def its_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """Of transformers, with this template. It begins every text of its own accord, and so must not begin a chat."""
    tokenizer = byte_tokenizer()._tokenizer
    tokenizer.add_special_tokens(["<|begin|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", 257)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>", chat_template=source)


@pytest.mark.parametrize("source", [CHATML, LLAMA, ZEPHYR], ids=["chatml", "llama", "zephyr"])
def test_text_and_tokens_are_those_of_transformers(tmp_path: Path, source: str) -> None:
    oracle = its_tokenizer(source)
    oracle.save_pretrained(tmp_path)
    template, tokenizer = read_chat_template(tmp_path), read_tokenizer(tmp_path)
    assert template is not None
    text = template.render(Conversation(TALK))
    assert text == oracle.apply_chat_template(list(TALK), tokenize=False, add_generation_prompt=True)
    assert tokenizer.encode(text, add_special_tokens=False) == oracle.apply_chat_template(
        list(TALK), add_generation_prompt=True)["input_ids"]


def test_the_simulated_model_is_asked_in_plain_words() -> None:
    assert plain_template().render(Conversation(TALK[:1])) == "system: You weave.\n\nassistant: "


def test_json_is_not_escaped_for_html() -> None:
    assert rendered("{{ messages[0].content | tojson }}", [{"content": "<é>"}]) == json.dumps("<é>", ensure_ascii=False)


def test_special_tokens_go_by_their_names() -> None:
    assert rendered("{{ bos_token }}{{ eos_token is defined }}", bos_token="<s>") == "<s>False"


def test_a_template_may_refuse_messages_in_its_own_words() -> None:
    assert refusal("{{ raise_exception('roles  must\nalternate') }}") == "roles must alternate"


@pytest.mark.parametrize(("source", "message"), [
    ("{% loom %}", "TemplateSyntaxError: Encountered unknown tag 'loom'."),
    ("{{ loom.threads }}", "UndefinedError: 'loom' is undefined"),
    ("{{ messages[0].content + 1 }}", "TypeError: "),
    ("{% macro more() %}{{ more() }}{% endmacro %}{{ more() }}", "RecursionError: "),
    ("{{ lipsum(1) }}", "UndefinedError: 'lipsum' is undefined"),
    ("{% include 'loom' %}", "TypeError: no loader"),
])
def test_what_goes_wrong_in_a_template_is_told(source: str, message: str) -> None:
    assert refusal(source).startswith(message)


@pytest.mark.parametrize("source", [
    "{{ ''.__class__.x }}", "{{ '{0.__class__.x}'.format('') }}", "{{ (''|attr('__class__')).x }}",
    "{{ raise_exception.__globals__.x }}", "{{ self._TemplateReference__context.x }}", "{{ dict.mro() }}",
    "{{ messages.append(1) }}", "{{ messages[0].update(role='system') }}",
])
def test_a_template_does_not_get_out(source: str) -> None:
    assert refusal(source).startswith(("SecurityError: access to attribute", "UndefinedError: 'dict object' has no"))


def test_what_a_template_does_to_the_messages_stays_with_it() -> None:
    messages = [dict(HELLO[0])]
    rendered("{% set ns = namespace(m=messages[0]) %}{{ ns.m.content }}", messages)
    assert messages == [*HELLO]


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
def test_a_template_that_grows_is_stopped(source: str) -> None:
    assert refusal(source).startswith(f"it would make more than {MOST_CHARACTERS} characters")


def test_ranges_are_short() -> None:
    assert "Range too big" in refusal("{{ range(100001) }}")


@pytest.mark.parametrize("source", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
    "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(90) }}",
    "{% for a in [range(9)] recursive %}{% if loop.depth < 90 %}{{ loop([a]) }}{{ loop([a]) }}{% endif %}{% endfor %}",
])
def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr("router.chat.MOST_SECONDS", 0.01)
    assert refusal(source) == "it took more than 0.01 s of the processor; send fewer messages"


def test_time_is_counted_for_each_thread_and_rendering() -> None:
    template, texts = plain_template(), []
    threads = [threading.Thread(target=lambda: texts.append(template.render(Conversation(HELLO)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["user: hi\nassistant: "] * 4


# -- tools, and answers that have begun

TOOLS = ({"type": "function", "function": {"name": "paint"}},)
WITH_PLACE = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"


def test_tools_stand_where_the_template_has_a_place_for_them() -> None:
    told = ChatTemplate(WITH_PLACE, {}).render(Conversation(({"role": "user", "content": "hi"},), TOOLS))
    assert told == '[{"type": "function", "function": {"name": "paint"}}]hi'


def test_a_template_without_a_place_for_tools_gets_them_in_the_last_message() -> None:
    template = ChatTemplate("{{ messages[-1].content }}", {})
    told = template.render(Conversation(({"role": "user", "content": "hi"},), TOOLS))
    assert told == f"hi\n---\n{json.dumps(list(TOOLS))}\n{HOW_TO_CALL}"


def test_a_client_may_say_itself_how_tools_are_called() -> None:
    asked = Conversation(({"role": "user", "content": "hi"},), TOOLS, "Call!")
    assert ChatTemplate("{{ messages[-1].content }}", {}).render(asked).endswith("}}]\nCall!")
    assert ChatTemplate(WITH_PLACE, {}).render(asked).endswith("]hi\n---\nCall!")


@pytest.mark.parametrize("source", [CHATML, LLAMA, ZEPHYR], ids=["chatml", "llama", "zephyr"])
def test_an_answer_that_has_begun_goes_on(source: str) -> None:
    messages = ({"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "})
    told = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(Conversation(messages))
    assert told.endswith("One, two,")


def test_a_call_at_the_end_is_over() -> None:
    messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [{}]})
    assert ChatTemplate("{{ messages[-1].content }}!", {}).render(Conversation(messages)) == "y!"


def test_a_prompt_for_what_must_be_a_call_says_what_stands_before_it() -> None:
    asked = Conversation(({"role": "user", "content": "hi"},), TOOLS, must_call=True)
    source = "{{ messages[-1].content }}{% if false and tools %}<tool_call>\\n{% endif %}:"
    assert ChatTemplate(source, {}).render(asked) == "hi:<tool_call>\n"
    assert ChatTemplate("{{ messages[-1].content }}:", {}).render(asked).endswith(":")
