"""Hostile chat templates end in an error answer and do not affect other requests."""

import json
from time import process_time

import pytest

from router.text.chat_template import ChatTemplate

CHAT_PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS_TEMPLATES = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro": "{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(90) }}",
    "a filter of filters": "{{ range(99999) | select('in', range(99999) | list) | list }}",
    "an answer that goes on": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
                              "{{ messages[-1].content }}",
}
SANDBOX_ESCAPES = {
    "a class": "{{ ''.__class__.__mro__ }}", "a format": "{{ '{0.__class__.__init__.x}'.format(messages) }}",
    "globals": "{{ raise_exception.__globals__['json'] }}", "a filter": "{{ (''|attr('__class__')).__mro__ }}",
    "a file": "{% include '/etc/passwd' %}", "a module": "{% import 'os' as os %}{{ os.environ }}",
    "a type": "{{ dict.update(messages[0], role='x') }}", "a guise": "{{ namespace(__class__=messages) }}",
    "itself": "{{ more() if false }}{% macro more() %}{{ more() }}{% endmacro %}{{ more() }}",
    "memory": "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
}


def expect_template_error(post, source, *, messages=MESSAGES, **body):
    """Check that rendering fails with a 400, for streams before any event, and return the message."""
    status, headers, text = post(CHAT_PATH, template=ChatTemplate(source, {}), messages=messages, **body)
    assert (status, headers["Content-Type"]) == (400, "application/json")
    error = json.loads(text)["error"]
    assert (error["param"], error["message"][:16]) == ("messages", "Template error: ")
    return error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("of", ENDLESS_TEMPLATES)
def test_endless_template_is_stopped_within_a_second_of_cpu_time(post, of):
    begun = [*MESSAGES, {"role": "assistant", "content": "One"}]
    started = process_time()
    assert expect_template_error(post, ENDLESS_TEMPLATES[of], messages=begun).endswith(
        "it took more than 0.5 s of the processor; send fewer messages")
    assert process_time() - started < 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("of", SANDBOX_ESCAPES)
def test_template_that_tries_to_escape_the_sandbox_is_rejected(post, of, stream):
    expect_template_error(post, SANDBOX_ESCAPES[of], stream=stream)


def test_tojson_filter_keeps_the_order_of_fields(serve):
    """Another order of fields would give other tokens than those the model was trained on."""
    tools = [{"function": {"strict": True, "parameters": {"type": "object", "properties": {}}, "name": "dye"},
              "cost": 1.5, "type": "function"}]
    call = {"type": "function", "id": "1", "function": {"arguments": {"b": None, "a": "é"}, "name": "dye"}, "index": 0}
    messages = [{"role": "user", "content": "hi", "name": "warp"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "done", "tool_call_id": "1"}]

    async def scenario(client, engine):
        assert (await client.post(CHAT_PATH, json={"messages": messages, "tools": tools})).status == 200
        assert bytes(engine.requests[0].prompt).decode() == json.dumps([tools, messages], ensure_ascii=False)
    serve(scenario, template=ChatTemplate("{{ [tools, messages] | tojson }}", {}))


@pytest.mark.slow
def test_template_failure_does_not_affect_the_next_request(serve):
    """A template that failed for one request renders the next."""
    template = ChatTemplate("{% if messages[0].content == 'loop' %}" + ENDLESS_TEMPLATES["loops"] + "{% endif %}:", {})

    async def scenario(client, engine):
        for content, status in (("loop", 400), ("hi", 200)):
            answer = await client.post(CHAT_PATH, json={"messages": [{"role": "user", "content": content}]})
            assert answer.status == status
        assert len(engine.requests) == 1
    serve(scenario, template=template)
