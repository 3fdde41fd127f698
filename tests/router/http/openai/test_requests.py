"""Fields that OpenAI's chats and completions share, and their validation with the adapter that `model` names."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.servers.fake_adapter_store import FakeAdapterStore
from support.servers.scripted_adapters import make_preloaded_adapters

from router.adapters.reference import AdapterReference
from router.config import RouterConfig
from router.errors import AdapterLoadFailed, AdapterNotFound, InvalidRequest
from router.http.openai.requests import (
    REFUSED_FIELDS,
    ChatRequest,
    OpenAIBaseRequest,
    as_list,
    validate_with_model_adapter,
)
from router.http.transport.request_context_and_middleware import RequestContext
from router.http.transport.services import RequestGroupBudget, ServedModel, Services
from router.http.transport.sse import PumpFlusher
from router.model_info import ModelInfo
from router.request import Tenant
from router.text.prompt_encoder import DialectParameterNames
from router.text.tokenizer import create_byte_tokenizer
from router.validation.validator import GenerationInput, RequestValidator, ValidatedRequest

GENERATION_INPUT_FIELDS = [field.name for field in fields(GenerationInput)]
MODEL_INFO = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)
PARAMETER_NAMES = DialectParameterNames("prompt", "max_tokens", truncate="")
CONTEXT = RequestContext(Tenant("weavers"), "mine", arrived_at=5.0, timeout_ms="2000", source_token="theirs")


def parse_request(**fields: Any) -> OpenAIBaseRequest:
    return OpenAIBaseRequest.model_validate_json(json.dumps(fields))


def make_generation_input(**fields: Any) -> GenerationInput:
    return parse_request(**fields).base_generation_input("hi", PARAMETER_NAMES, CONTEXT)


def run_with_services(scenario: Callable[[Services], Awaitable[Any]], store: FakeAdapterStore | None = None,
                      **settings: Any) -> Any:
    """Run a scenario with the services of a model named `looms/loom`; adapters are served only with a `store`."""
    async def main() -> Any:
        config = RouterConfig(**settings)
        registry = None if store is None else await make_preloaded_adapters(config, store)
        with closing(RequestValidator(config, MODEL_INFO, create_byte_tokenizer(),
                                      adapter_registry=registry)) as validator:
            no_engine: Any = None
            return await scenario(Services(no_engine, validator, config, ServedModel("looms/loom"), PumpFlusher(),
                                           RequestGroupBudget(64)))
    return asyncio.run(main())


# -- fields


@settings(max_examples=50)
@given(st.text(max_size=9))
def test_single_string_is_a_list_of_itself(text: str) -> None:
    assert as_list(text) == [text]
    assert parse_request(stop=text).stop == [text]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=9), max_size=5))
def test_list_of_strings_stays_as_it_is(texts: list[str]) -> None:
    assert as_list(texts) is texts
    assert parse_request(stop=texts).stop == texts


@pytest.mark.parametrize("value", [5, True, {"a": "b"}, [1, 2], [["a"]], ["a", None]], ids=str)
def test_only_the_first_fault_of_a_stop_list_is_reported(value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        parse_request(stop=value)
    assert [error["loc"][0] for error in raised.value.errors()] == ["stop"]


@pytest.mark.parametrize("name", sorted(OpenAIBaseRequest.model_fields))
def test_null_means_that_the_field_is_not_given(name: str) -> None:
    assert parse_request(**{name: None}) == parse_request()
    assert make_generation_input(**{name: None}) == make_generation_input()


@pytest.mark.parametrize(("options", "expected"), [
    (None, False), ({}, False), ({"include_usage": None}, False), ({"include_usage": False}, False),
    ({"include_usage": True}, True)], ids=str)
def test_usage_is_included_only_on_request(options: object, expected: bool) -> None:
    assert parse_request(stream_options=options).should_include_usage == expected


@pytest.mark.parametrize(("fields", "names"), [
    ({"response_format": {"type": "json_object", "value": 7}}, ["response_format"]), ({"guided_regex": ""},
    ["guided_regex"]), ({"response_format": {"type": "text"}}, []), ({}, [])])
def test_unused_format_is_named_without_being_read_again(fields: dict[str, Any], names: list[str]) -> None:
    """Regression: it was read on the event loop, after it had been read in a thread."""
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})
    assert request.list_unused_formats() == []
    assert request.model_copy(update={"tool_choice": "required"}).list_unused_formats() == names


def test_api_token_is_not_in_the_repr() -> None:
    assert "hf_mine" not in repr(parse_request(api_token="hf_mine", model="a"))


# -- generation parameters


@pytest.mark.parametrize(("name", "value", "parameter"), [
    ("temperature", 0.5, "temperature"), ("top_p", 0.25, "top_p"), ("frequency_penalty", -1.5, "frequency_penalty"),
    ("presence_penalty", 1.25, "presence_penalty"), ("max_tokens", 2**32 - 1, "max_new_tokens"),
    ("seed", 2**64 - 1, "seed"), ("ignore_eos", True, "ignore_eos"), ("cache_salt", "s", "cache_salt"),
    ("priority", -7, "priority"), ("repetition_penalty", 1.5, "repetition_penalty"), ("top_k", 3, "top_k"),
    ("min_p", 0.25, "min_p"), ("min_tokens", 4, "min_tokens"), ("logit_bias", {"7": -100.0}, "logit_bias")])
def test_field_becomes_one_parameter_and_changes_no_other(name: str, value: object, parameter: str) -> None:
    usual, changed = make_generation_input(), make_generation_input(**{name: value})
    differences = {field: getattr(changed, field) for field in GENERATION_INPUT_FIELDS
                   if getattr(changed, field) != getattr(usual, field)}
    assert differences == {parameter: value}


def test_lists_of_tokens_become_tuples() -> None:
    made = make_generation_input(stop_token_ids=[5, 6], allowed_token_ids=[7])
    assert (made.stop_token_ids, made.allowed_token_ids) == ((5, 6), (7,))


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_of_clients_of_vllm_keeps_all_candidates(top_k: int) -> None:
    assert make_generation_input(top_k=top_k) == make_generation_input()


def test_context_and_prompt_are_part_of_the_parameters() -> None:
    made = make_generation_input(stop=["a", "b"])
    assert (made.prompt, made.parameter_names, made.stop_strings) == ("hi", PARAMETER_NAMES, ("a", "b"))
    assert (made.tenant, made.request_id, made.deadline, made.priority) == (Tenant("weavers"), "mine", 7.0, 0)


@given(st.one_of(st.none(), st.just(-0.0), st.floats(0.0, 2.0)), st.one_of(st.none(), st.floats(0.0, 1.0)))
def test_text_is_sampled_unless_the_temperature_is_zero(temperature: float | None, top_p: float | None) -> None:
    made = make_generation_input(temperature=temperature, top_p=top_p)
    assert made.is_sampling == (temperature != 0)
    assert made.temperature == (temperature or None)  # zero would be rejected
    assert made.top_p == (None if top_p == 1.0 else top_p)


# -- adapters

Reference = AdapterReference | None


def get_reference(store: FakeAdapterStore | None = None, **fields: Any) -> Reference:
    async def scenario(services: Services) -> Reference:
        return parse_request(**fields).adapter_reference(services, "theirs")
    return run_with_services(scenario, store)


@pytest.mark.parametrize("model", [None, "", "looms/loom", "tgi", "https://looms.example.org/v1"])
def test_name_of_the_served_model_is_no_adapter(model: str | None) -> None:
    assert get_reference(FakeAdapterStore(), model=model, adapter_source="s3", api_token="mine") is None


@pytest.mark.parametrize("model", ["a", "a\n", "x" * 600])
def test_any_name_is_the_served_model_if_there_are_no_adapters(model: str) -> None:
    assert get_reference(model=model) is None


@pytest.mark.parametrize(("fields", "source", "source_token"), [
    ({}, None, "theirs"), ({"adapter_source": "", "api_token": ""}, None, "theirs"),
    ({"adapter_source": "s3"}, "s3", "theirs"), ({"api_token": "mine"}, None, "mine")], ids=str)
def test_source_and_token_of_the_body_come_first(fields: dict[str, str], source: str | None, source_token: str) -> None:
    reference = get_reference(FakeAdapterStore(), model="a", **fields)
    assert reference == AdapterReference("a", source)
    assert reference.source_token == source_token


@pytest.mark.parametrize("model", ["a\n", "x" * 513])
def test_model_that_can_be_no_adapter_name_is_rejected(model: str) -> None:
    with pytest.raises(InvalidRequest, match=f"got {len(model)} characters") as raised:
        get_reference(FakeAdapterStore(), model=model)
    assert raised.value.param == "model"


# -- validation


def validate(store: FakeAdapterStore | None, *, generation_input: GenerationInput | None = None,
             preloaded_adapter_ids: tuple[str, ...] = (), **fields: Any) -> ValidatedRequest:
    context = RequestContext(Tenant(), "mine", arrived_at=5.0, timeout_ms=None)

    async def scenario(services: Services) -> ValidatedRequest:
        request = parse_request(**fields)
        made = generation_input or request.base_generation_input("hi", PARAMETER_NAMES, context)
        [validated_request] = await validate_with_model_adapter(services, request, made, context)
        return validated_request
    return run_with_services(scenario, store, preloaded_adapter_ids=preloaded_adapter_ids)


def test_validated_request_uses_the_adapter_that_model_names() -> None:
    validated_request = validate(FakeAdapterStore(), model="b", max_tokens=7)
    assert (validated_request.adapter is not None, validated_request.request.max_new_tokens) == (True, 7)
    assert validated_request.request.adapter == validated_request.adapter.resource  # type: ignore[union-attr]


def test_model_of_the_body_comes_before_the_adapter_of_the_parameters() -> None:
    made = GenerationInput(prompt="hi", adapter=AdapterReference("b"))
    assert validate(FakeAdapterStore(), generation_input=made, model="looms/loom").adapter is None


@pytest.mark.parametrize(("preloaded", "names"), [
    ((), "looms/loom"), (("mine=a", "b"), "looms/loom, mine, b")], ids=str)
def test_error_for_an_unknown_model_names_the_known_ones(preloaded: tuple[str, ...], names: str) -> None:
    with pytest.raises(AdapterNotFound, match="there is no c") as raised:
        validate(FakeAdapterStore(), model="c", preloaded_adapter_ids=preloaded)
    assert str(raised.value).startswith(
        f"this server has no model 'c': `model` may be {names} or the name of an adapter (")
    assert (raised.value.param, type(raised.value.__cause__)) == ("model", AdapterNotFound)


def test_adapter_that_cannot_be_fetched_is_not_reported_as_unknown() -> None:
    with pytest.raises(AdapterLoadFailed) as raised:
        validate(FakeAdapterStore(), model="away")
    assert "`model` may be" not in str(raised.value)


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                                            ("/v1/completions", {"prompt": "x"})])
def test_fields_that_would_change_the_answer_are_refused_by_name(post, path, body):
    for name, value in {"audio": {"voice": "x"}, "functions": [{"name": "f"}], "prompt_logprobs": 0, "ebnf": "x",
                        "skip_special_tokens": False, "modalities": ["audio"], "truncate_prompt_tokens": 3,
                        "length_penalty": 2.0}.items():
        status, _, text = post(path, **body, **{name: value})
        error = json.loads(text)["error"]
        assert (status, error["param"]) == (400, name)
        assert error["message"] == f"`{name}` is given, but this server does not support it; leave it out"
        assert post(path, **body, **{name: value}, config=RouterConfig(compat="tgi"))[0] == 200
    harmless = {name: values[0] for name, values in REFUSED_FIELDS.items()}
    status, headers, _ = post(path, **body, **harmless | {"length_penalty": 1}, user="me")
    assert status == 200
    assert headers["x-ignored-fields"].startswith("audio, bad_words, chat_template")


GUIDED_FIELDS_BY_KIND = {
    "json_schema": [{"guided_json": {"type": "object"}}, {"guided_json": '{"type": "object"}'},
                    {"structured_outputs": {"json": {"type": "object"}}},
                    {"structured_outputs": {"json_object": True}}, {"response_format": {"type": "json_object"}}],
    "regex": [{"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}],
    "grammar": [{"guided_choice": ["a", "b\n"]}, {"structured_outputs": {"choice": ["a", "b\n"]}},
                {"guided_grammar": 'root ::= "a"'}, {"structured_outputs": {"grammar": 'start: "a"'}}]}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                                            ("/v1/completions", {"prompt": "x"})])
def test_output_is_constrained_in_every_spelling(serve, path, body):
    async def scenario(client, engine):
        for constraint in (constraint for spellings in GUIDED_FIELDS_BY_KIND.values() for constraint in spellings):
            answer = await client.post(path, json=body | constraint)
            assert answer.status == 200, await answer.text()
        assert [request.grammar.kind for request in engine.requests] == ["grammar"] * 11
    serve(scenario, grammars=True)


@pytest.mark.parametrize(("fields", "words"), [
    ({"structured_outputs": {}}, "`structured_outputs` must have exactly one of json, regex, choice, grammar, "
     "json_object, got none"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "got regex, json_object"),
    ({"structured_outputs": {"json_object": False}}, "`structured_outputs` must have exactly one of"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "`guided_regex` and `guided_choice` are given"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "`response_format` and `guided_regex`"),
    ({"guided_choice": []}, "`guided_choice` must be a list of texts that are not empty"),
    ({"guided_choice": ["a", ""]}, "`guided_choice` must be"), ({"guided_regex": ""}, "`guided_regex` must be"),
    ({"guided_grammar": " "}, "`guided_grammar` must be a grammar of Lark or GBNF"),
    ({"guided_grammar": 'start: %json {"type": "integer"}'}, "`guided_grammar` must not contain `%json`"),
    ({"guided_grammar": '%llguidance {}\nstart: "a"'}, "`guided_grammar` must not contain `%llguidance`"),
    ({"guided_json": "{"}, "`guided_json` is a string that holds no JSON"),
    ({"guided_json": "1"}, "`guided_json` must be a JSON schema")])
def test_invalid_constraint_is_refused(post, fields, words):
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                       ("/v1/completions", {"prompt": "x"})):
        status, _, text = post(path, **body, **fields)
        assert (status, words in json.loads(text)["error"]["message"]) == (400, True), text


@pytest.mark.parametrize("constraint", [{"guided_regex": "(?=a)"}, {"guided_grammar": "nonsense"},
                                        {"response_format": {"type": "regex", "value": "(?=a)"}}])
def test_grammar_that_cannot_be_compiled_names_its_field(serve, constraint):
    async def scenario(client, _):
        for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
                           ("/v1/completions", {"prompt": "x"})):
            answer = await client.post(path, json=body | constraint)
            error = (await answer.json())["error"]
            assert (answer.status, [error["param"]]) == (400, [*constraint])
            assert "the grammar is refused: " in error["message"]
    serve(scenario, grammars=True)


@pytest.mark.parametrize(("fields", "param", "place"), [
    ({"response_format": {"type": "json_object", "schema": {"$ref": "#/$defs/x"}}}, "response_format", "$ref"),
    ({"guided_json": {"items": {"$ref": "#/$defs/x"}}}, "guided_json", "items.$ref"),
    ({"tools": [{"function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "#/$defs/x"}}}}}],
      "tool_choice": "required"}, "tool_choice", "properties.a.$ref")])
def test_reference_that_leads_nowhere_is_named_with_its_path(serve, fields, param, place):  # type: ignore[no-untyped-def]
    async def scenario(client, engine):  # type: ignore[no-untyped-def]
        body = {"messages": [{"role": "user", "content": "x"}], **fields}
        async with client.post("/v1/chat/completions", json=body) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["param"]) == (400, param)
        assert error["message"].startswith(
            f"`{param}` is refused: the reference `#/$defs/x` at `{place}` leads to no part of the JSON schema")
    serve(scenario, grammars=True)
