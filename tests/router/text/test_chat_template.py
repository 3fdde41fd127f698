"""Rendering of messages as a prompt: inputs of templates, and where the answer begins. The features that templates may
use are tested in test_templates.py, forbidden ones in test_jinja_sandbox.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from router.text.chat_template import HOW_TO_CALL, ChatTemplate, Conversation, plain_template
from router.text.model_files import read_chat_template, read_tokenizer
from router.text.tokenizer import byte_tokenizer

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


def its_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers with this template. It adds `<|begin|>` to texts; chats must not get it."""
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


def test_special_tokens_go_by_their_names() -> None:
    assert rendered("{{ bos_token }}{{ eos_token is defined }}", bos_token="<s>") == "<s>False"


def test_what_a_template_does_to_the_messages_stays_with_it() -> None:
    messages = [dict(HELLO[0])]
    rendered("{% set ns = namespace(m=messages[0]) %}{{ ns.m.content }}", messages)
    assert messages == [*HELLO]


# -- tools, and unfinished answers

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


@pytest.mark.parametrize("begun", ["a", "assistant", "hi"])
def test_an_answer_goes_on_behind_its_beginning_though_the_same_words_follow_or_precede(begun: str) -> None:
    assert rendered(LLAMA, [*HELLO, {"role": "assistant", "content": begun}]).endswith(f"[assistant]{begun}")


def test_an_answer_that_its_template_leaves_out_begins_anew() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "No"}]
    assert rendered("{{ messages[0].content }}{% if add_generation_prompt %}:{% endif %}", begun) == "hi:"


def test_where_a_template_repeats_what_was_said_nothing_of_ours_stays() -> None:
    begun = [*HELLO, {"role": "assistant", "content": "No"}]
    assert rendered("{{ messages[1].content }}, {{ messages[1].content }}.", begun) == "No, No"


def test_what_is_null_is_not_given() -> None:
    source = "{{ messages[0].content is defined }}{{ messages[0] }}"
    assert rendered(source, [{"content": None, "x": 1}]) == "False{'x': 1}"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_every_name_that_templates_know(name: str) -> None:
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert rendered(source, [{"role": "assistant", name: "hm"}, *HELLO]) == "hm hm"


def test_a_call_at_the_end_is_over() -> None:
    messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [{}]})
    assert ChatTemplate("{{ messages[-1].content }}!", {}).render(Conversation(messages)) == "y!"


def test_a_prompt_for_what_must_be_a_call_says_what_stands_before_it() -> None:
    asked = Conversation(({"role": "user", "content": "hi"},), TOOLS, must_call=True)
    source = "{{ messages[-1].content }}{% if false and tools %}<tool_call>\\n{% endif %}:"
    assert ChatTemplate(source, {}).render(asked) == "hi:<tool_call>\n"
    assert ChatTemplate("{{ messages[-1].content }}:", {}).render(asked).endswith(":")
