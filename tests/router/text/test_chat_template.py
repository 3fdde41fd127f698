"""Rendering of messages as a prompt: inputs of templates, and where the answer begins. The features that templates may
use are tested in test_templates.py, forbidden ones in test_jinja_sandbox.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from router.text.chat_template import DEFAULT_TOOL_PROMPT, ChatTemplate, Conversation, simulated_model_template
from router.text.model_files import load_chat_template, load_tokenizer
from router.text.tokenizer import create_byte_tokenizer

MESSAGES = ({"role": "user", "content": "hi"},)
CONVERSATION = (
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


def render(source: str, messages: Any = MESSAGES, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(Conversation(tuple(messages)))


def make_transformers_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of transformers with this template. It adds `<|begin|>` to texts; chats must not get it."""
    tokenizer = create_byte_tokenizer()._tokenizer
    tokenizer.add_special_tokens(["<|begin|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", 257)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>", chat_template=source)


@pytest.mark.parametrize("source", [CHATML, LLAMA, ZEPHYR], ids=["chatml", "llama", "zephyr"])
def test_prompt_and_tokens_match_transformers(tmp_path: Path, source: str) -> None:
    oracle = make_transformers_tokenizer(source)
    oracle.save_pretrained(tmp_path)
    template, tokenizer = load_chat_template(tmp_path), load_tokenizer(tmp_path)
    assert template is not None
    text = template.render(Conversation(CONVERSATION))
    assert text == oracle.apply_chat_template(list(CONVERSATION), tokenize=False, add_generation_prompt=True)
    assert tokenizer.tokenize(text, add_special_tokens=False).ids == oracle.apply_chat_template(
        list(CONVERSATION), add_generation_prompt=True)["input_ids"]


def test_plain_template_writes_roles_and_contents() -> None:
    assert simulated_model_template().render(Conversation(CONVERSATION[:1])) == "system: You weave.\n\nassistant: "


def test_special_tokens_are_template_variables() -> None:
    assert render("{{ bos_token }}{{ eos_token is defined }}", bos_token="<s>") == "<s>False"


def test_template_cannot_change_the_messages() -> None:
    messages = [dict(MESSAGES[0])]
    render("{% set ns = namespace(m=messages[0]) %}{{ ns.m.content }}", messages)
    assert messages == [*MESSAGES]


# -- tools, and unfinished answers

TOOLS = ({"type": "function", "function": {"name": "paint"}},)
TEMPLATE_WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"


def test_tools_are_rendered_by_the_template_if_it_supports_them() -> None:
    prompt = ChatTemplate(TEMPLATE_WITH_TOOLS, {}).render(Conversation(({"role": "user", "content": "hi"},), TOOLS))
    assert prompt == '[{"type": "function", "function": {"name": "paint"}}]hi'


def test_template_without_tools_gets_them_in_the_last_message() -> None:
    template = ChatTemplate("{{ messages[-1].content }}", {})
    prompt = template.render(Conversation(({"role": "user", "content": "hi"},), TOOLS))
    assert prompt == f"hi\n---\n{json.dumps(list(TOOLS))}\n{DEFAULT_TOOL_PROMPT}"


def test_client_can_set_the_tool_call_instructions() -> None:
    conversation = Conversation(({"role": "user", "content": "hi"},), TOOLS, "Call!")
    assert ChatTemplate("{{ messages[-1].content }}", {}).render(conversation).endswith("}}]\nCall!")
    assert ChatTemplate(TEMPLATE_WITH_TOOLS, {}).render(conversation).endswith("]hi\n---\nCall!")


@pytest.mark.parametrize("source", [CHATML, LLAMA, ZEPHYR], ids=["chatml", "llama", "zephyr"])
def test_unfinished_answer_is_continued(source: str) -> None:
    messages = ({"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "})
    prompt = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(Conversation(messages))
    assert prompt.endswith("One, two,")


@pytest.mark.parametrize("begun", ["a", "assistant", "hi"])
def test_unfinished_answer_is_continued_even_if_its_words_occur_elsewhere(begun: str) -> None:
    assert render(LLAMA, [*MESSAGES, {"role": "assistant", "content": begun}]).endswith(f"[assistant]{begun}")


def test_answer_that_the_template_leaves_out_starts_again() -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "No"}]
    assert render("{{ messages[0].content }}{% if add_generation_prompt %}:{% endif %}", begun) == "hi:"


def test_no_marker_is_left_if_the_template_repeats_the_answer() -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "No"}]
    assert render("{{ messages[1].content }}, {{ messages[1].content }}.", begun) == "No, No"


def test_null_fields_are_omitted() -> None:
    source = "{{ messages[0].content is defined }}{{ messages[0] }}"
    assert render(source, [{"content": None, "x": 1}]) == "False{'x': 1}"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_available_under_every_known_name(name: str) -> None:
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert render(source, [{"role": "assistant", name: "hm"}, *MESSAGES]) == "hm hm"


def test_tool_call_at_the_end_is_not_continued() -> None:
    messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": [{}]})
    assert ChatTemplate("{{ messages[-1].content }}!", {}).render(Conversation(messages)) == "y!"


def test_required_tool_call_prompt_ends_with_the_call_opening() -> None:
    conversation = Conversation(({"role": "user", "content": "hi"},), TOOLS, must_call_tool=True)
    source = "{{ messages[-1].content }}{% if false and tools %}<tool_call>\\n{% endif %}:"
    assert ChatTemplate(source, {}).render(conversation) == "hi:<tool_call>\n"
    assert ChatTemplate("{{ messages[-1].content }}:", {}).render(conversation).endswith(":")


@pytest.mark.parametrize(("answer_beginning", "may_reason", "has_opening"), [
    ("", True, False), ("<think>\n", True, False), ("<think>\n\n</think>\n\n", True, True), ("", False, True),
    ("<think>\n", False, True)])
def test_opening_of_a_required_call_is_part_of_the_prompt_unless_reasoning_precedes_it(
        answer_beginning: str, may_reason: bool, has_opening: bool) -> None:
    template = ChatTemplate("{% if false %}<tool_call>\n<think>{% endif %}<|im_start|>assistant\n"
                            f"{{{{ {answer_beginning!r} }}}}", {})
    prompt = template.render(Conversation(({"role": "user", "content": "hi"},), must_call_tool=True,
                                          may_reason=may_reason))
    assert prompt == "<|im_start|>assistant\n" + answer_beginning + "<tool_call>\n" * has_opening
