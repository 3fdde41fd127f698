"""The parser of a chat's answer follows from the prompt: what that has begun of the answer, however long it is."""

import json

import pytest
from support.servers.expected_streams import make_text_events

from router.text.chat_template import ChatTemplate

CHAT_PATH = "/v1/chat/completions"
CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think> <tool_call> #}")
PAINT_TOOL = {"type": "function", "function": {"name": "paint"}}


def answer_chat(serve, text, *, messages=(), template=CHATML, **fields):
    """Return the message that a model's text becomes, whole and in a stream, which are compared."""
    async def scenario(client, _):
        body = {"messages": [{"role": "user", "content": "hi"}, *messages]} | fields
        whole = await client.post(CHAT_PATH, json=body)
        assert whole.status == 200, await whole.text()
        stream = await client.post(CHAT_PATH, json=body | {"stream": True})
        chunks = [json.loads(line[6:]) for line in (await stream.text()).split("\n\n")[:-2]]
        return (await whole.json())["choices"][0]["message"], [chunk["choices"][0]["delta"] for chunk in chunks]

    message, deltas = serve(scenario, make_text_events(text), make_text_events(text), grammars=True,
                            template=ChatTemplate(template, {}), max_positions=30_000, num_blocks=2_000)
    for name in ("content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    return message


@pytest.mark.parametrize("fields", [{}, {"tools": [PAINT_TOOL]}])
@pytest.mark.parametrize("length", [10, 9_000])
def test_reasoning_goes_on_that_began_long_before_the_end_of_the_prompt(serve, length, fields):
    """Regression: the parser read the last 8,192 tokens of a continued answer, the grammar all of it."""
    begun = {"role": "assistant", "content": f"<think>{'x' * length}"}
    message = answer_chat(serve, "Hm</think>Yes", messages=[begun], **fields)
    assert (message["reasoning"], message["content"]) == ("Hm", "Yes")


def test_reasoning_that_a_template_begins_may_be_long(serve):
    """Regression: the parser read the last 64 tokens of other prompts."""
    template = CHATML.replace("{% endif %}{#", "<think>" + "It is asked. " * 20 + "{% endif %}{#")
    message = answer_chat(serve, "Hm</think>Yes", template=template)
    assert (message["reasoning"], message["content"]) == ("Hm", "Yes")


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "json_object"}}])
def test_prompt_that_ends_with_another_message_has_begun_no_answer(serve, fields):
    """The last answer in the prompt, here one that was cut off in its reasoning, is not the one that comes."""
    messages = [{"role": "assistant", "content": "<think>Hm"}, {"role": "user", "content": "more"}]
    for text, reasoning in (("{}", None), ("<think>Oh</think>{}", "Oh")):
        message = answer_chat(serve, text, messages=messages, add_generation_prompt=False, **fields)
        assert (message.get("reasoning"), message["content"]) == (reasoning, "{}")


MARKED = '{"a": "<tool_call>{\\"name\\": \\"paint\\", \\"arguments\\": {}}</tool_call><think>x</think>"}'


@pytest.mark.parametrize("prefix", ["", "<think>Hm</think>\n"])
def test_marks_within_a_formatted_answer_belong_to_it_though_tools_are_offered(serve, prefix):
    message = answer_chat(serve, prefix + MARKED, tools=[PAINT_TOOL], response_format={"type": "json_object"})
    assert (message["content"], message.get("reasoning"), message.get("tool_calls")) == (
        MARKED, "Hm" if prefix else None, None)


def test_calls_come_instead_of_a_formatted_answer(serve):
    calls = '<tool_call>\n{"name": "paint", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
    message = answer_chat(serve, calls + "\n" + calls, tools=[PAINT_TOOL], response_format={"type": "json_object"})
    assert (message["content"], [call["function"]["arguments"] for call in message["tool_calls"]]) == (
        None, ['{"a": "</tool_call>"}'] * 2)


def test_whitespace_of_a_format_is_kept_though_tools_are_offered(serve):
    message = answer_chat(serve, "  ab ", tools=[PAINT_TOOL], structured_outputs={"regex": " *ab *"})
    assert message["content"] == "  ab "
