"""LoRAX's parameters: their meaning, and rejections in LoRAX's words and order."""

import json

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore

from router.config import RouterConfig

LORAX_CONFIG = RouterConfig(compat="lorax")
MERGED_ADAPTERS = {"ids": ["a", "b"], "weights": [0.5, 0.5]}
# In LoRAX's order of checks: of two faults, the one listed first is reported.
INVALID_PARAMETERS = {
    "more choices than there may be": (
        {"best_of": 3, "adapter_id": "a", "merged_adapters": {"ids": []}},
        "`best_of` must be > 0 and <= 2. Given: 3"),
    "adapters twice": ({"adapter_id": "a", "merged_adapters": {"ids": []}},
                       "at most one of `adapter_id` or `adapters` may be provided"),
    "no adapters": ({"merged_adapters": {"ids": [], "weights": [1.0]}},
                    "at least one adapter ID must be provided when setting `adapters`"),
    "other weights": ({"merged_adapters": {"ids": ["a"]}, "best_of": 2},
                      "number of adapter IDs must match number of adapter weights"),
    "the same several times": ({"best_of": 2, "repetition_penalty": 0}, "you must use sampling when `best_of` is > 1"),
    "the same by its temperature": ({"best_of": 2, "temperature": 0}, "you must use sampling when `best_of` is > 1"),
    "temperature": ({"temperature": -0.5, "repetition_penalty": 0}, "`temperature` must be non-negative"),
    "repetition": ({"repetition_penalty": 0, "frequency_penalty": 3}, "`repetition_penalty` must be strictly positive"),
    "frequency": ({"frequency_penalty": 2.5, "presence_penalty": 3}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    "presence": ({"presence_penalty": -3, "top_p": 0}, "`presence_penalty` must be >= -2.0 and <= 2.0"),
    "top_p": ({"top_p": 1.5, "typical_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
    "typical_p": ({"typical_p": 1.0, "top_k": 0}, "`typical_p` must be > 0.0 and < 1.0"),
    "top_k": ({"top_k": -1, "return_k_alternatives": 0}, "`top_k` must be strictly positive"),
    "alternatives": ({"return_k_alternatives": 0, "max_new_tokens": 0},
                     "`return_k_alternatives` must be strictly positive"),
    "max_new_tokens": ({"max_new_tokens": 0, "stop": ["x"] * 5}, "`max_new_tokens` must be strictly positive"),
    "stops": ({"stop": ["x"] * 5, "truncate": 0}, "`stop` supports up to 4 stop sequences. Given: 5"),
    "stops, and a seed for several": ({"best_of": 2, "top_k": 3, "seed": 1, "stop": ["x"] * 5},
                                      "`stop` supports up to 4 stop sequences. Given: 5"),
    "seed": ({"best_of": 2, "top_k": 3, "seed": 1, "truncate": 0}, "`seed` must not be set when `best_of` > 1"),
    "truncate": ({"truncate": 1600, "max_new_tokens": 1599},
                 "`truncate` must be strictly positive and less than 1599. Given: 1600"),
    "nothing left by truncate": ({"truncate": 0}, "`truncate` must be strictly positive and less than 1599. Given: 0"),
    "the total": ({"max_new_tokens": 1599}, "`inputs` tokens + `max_new_tokens` must be <= 1600. Given: 2 `inputs` "
                  "tokens and 1599 `max_new_tokens`"),
}
INVALID_IN_STREAMS = {
    "several": ({"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
    "none": ({"best_of": 0}, "`best_of` != 1 is not supported when streaming tokens"),
    "details of the prompt": ({"decoder_input_details": True, "top_k": 0},
                              "`decoder_input_details` == true is not supported when streaming tokens"),
}
ACCEPTED_PARAMETERS = {
    "no choices": {"best_of": 0},
    "a share of all": {"top_p": 1.0},
    "nulls": dict.fromkeys(("adapter_id", "adapter_source", "merged_adapters", "api_token", "best_of", "temperature",
                            "repetition_penalty", "top_k", "top_p", "typical_p", "max_new_tokens", "truncate", "seed",
                            "return_k_alternatives", "response_format", "return_full_text")),
    "the model itself": {"adapter_id": "__base_model__"},
    "what has no effect": {"apply_chat_template": True, "whatever": 1},
    "no schema": {"response_format": {"type": "json_object", "schema": None}},
}


def validation_error_json(text):
    return json.dumps({"error": f"Input validation error: {text}", "error_type": "validation"}, separators=(",", ":"))


def post_and_get_requests(serve, *bodies, **settings):
    """Post the bodies and return the engine's requests."""
    async def scenario(client, engine):
        for body in bodies:
            answer = await client.post("/generate", json={"inputs": "hi"} | body)
            assert (answer.status, "error" in (text := await answer.text())) == (200, False), text
        return engine.requests
    return serve(scenario, **{"config": LORAX_CONFIG} | settings)


@pytest.mark.parametrize(("parameters", "text"), INVALID_PARAMETERS.values(), ids=INVALID_PARAMETERS)
def test_invalid_parameters_are_reported_in_lorax_order_and_words(post, parameters, text):
    assert post("/generate", config=LORAX_CONFIG, inputs="hi",
                parameters=parameters)[::2] == (422, validation_error_json(text))
    if "best_of" not in parameters:
        response = post("/generate_stream", config=LORAX_CONFIG, inputs="hi", parameters=parameters)
        assert response[::2] == (200, f"data:{validation_error_json(text)}\n\n")


@pytest.mark.parametrize(("parameters", "text"), INVALID_IN_STREAMS.values(), ids=INVALID_IN_STREAMS)
def test_streams_reject_best_of_and_prompt_details(post, parameters, text):
    for path in ("/", "/generate_stream"):
        response = post(path, config=LORAX_CONFIG, inputs="hi", stream=True, parameters=parameters)
        assert response[::2] == (200, f"data:{validation_error_json(text)}\n\n")


def test_best_of_can_be_disabled(post):
    response = post("/generate", config=RouterConfig(compat="lorax", max_best_of=1), inputs="hi",
                    parameters={"best_of": 2})
    assert response[::2] == (422, validation_error_json("`best_of` != 1 is not allowed for this endpoint"))


def test_empty_and_too_long_inputs_are_rejected(post):
    text = post("/generate", config=LORAX_CONFIG, inputs="", parameters={"truncate": 0})[2]
    assert text == validation_error_json("`inputs` cannot be empty")
    text = post("/generate", config=LORAX_CONFIG, inputs="", parameters={"best_of": 2, "top_k": 3, "seed": 1})[2]
    assert text == validation_error_json("`seed` must not be set when `best_of` > 1")
    config = RouterConfig(compat="lorax", max_input_tokens=4, max_total_tokens=8)
    text = post("/generate", config=config, inputs="x" * 5)[2]
    assert text == validation_error_json("`inputs` must have less than 4 tokens. Given: 5")
    text = post("/generate", config=config, inputs="x" * 5, parameters={"max_new_tokens": 4})[2]
    assert text == validation_error_json(
        "`inputs` tokens + `max_new_tokens` must be <= 8. Given: 5 `inputs` tokens and 4 `max_new_tokens`")
    assert post("/generate", config=config, inputs="x" * 4)[0] == 200


def test_truncated_tokens_do_not_count_towards_limits(serve):
    config = RouterConfig(compat="lorax", max_input_tokens=4, max_total_tokens=8)
    [request] = post_and_get_requests(serve, {"inputs": "weaving", "parameters": {"truncate": 3, "max_new_tokens": 5}},
                                      config=config)
    assert (bytes(request.prompt), request.max_new_tokens) == (b"ing", 5)


@pytest.mark.parametrize("parameters", [
    {"merged_adapters": MERGED_ADAPTERS | {"merge_strategy": "sum"}},
    {"merged_adapters": MERGED_ADAPTERS | {"majority_sign_method": "x"}},
    {"merged_adapters": MERGED_ADAPTERS | {"merge_strategy": "ties", "density": 1.5}}], ids=str)
def test_invalid_merge_options_are_validation_errors(post, parameters):
    status, _, text = post("/generate", config=LORAX_CONFIG, store=FakeAdapterStore(), inputs="hi",
                           parameters=parameters)
    assert (status, json.loads(text)["error_type"]) == (422, "validation")


@pytest.mark.parametrize("response_format", ["json", {"type": "regex"}, {"schema": {}}], ids=str)
def test_response_format_of_a_wrong_type_is_rejected(post, response_format):
    assert post("/generate", config=LORAX_CONFIG, inputs="hi",
                parameters={"response_format": response_format})[0] == 422


# -- meaning


@pytest.mark.parametrize("parameters", ACCEPTED_PARAMETERS.values(), ids=ACCEPTED_PARAMETERS)
def test_harmless_parameters_are_accepted(serve, parameters):
    [request] = post_and_get_requests(serve, {"parameters": parameters})
    assert (request.sampling.temperature, request.max_new_tokens, request.grammar) == (0, 1598, None)


def test_parameters_reach_the_request(serve):
    [request] = post_and_get_requests(serve, {"parameters": {
        "temperature": 0.5, "top_k": 3, "repetition_penalty": 2, "frequency_penalty": 1, "presence_penalty": -1,
        "ignore_eos_token": True, "stop": ["."], "watermark": True, "return_k_alternatives": 2,
        "decoder_input_details": True}})
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty, sampling.top_n_tokens) == (0.5, 3, 2, 2)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.relative_frequency_penalty) == (1, -1, 0)
    assert (request.end_tokens, request.stop_strings, request.prompt_logprobs) == (frozenset(), (".",), True)
    assert sampling.watermark


@pytest.mark.parametrize(("parameters", "temperature"), [
    ({}, 0), ({"do_sample": True}, 1), ({"temperature": 0}, 0), ({"temperature": 0, "do_sample": True, "top_k": 2}, 0),
    ({"temperature": 1e-50}, 0), ({"top_k": 2}, 1), ({"temperature": 1}, 0), ({"temperature": 1, "best_of": 2}, 1),
    ({"top_p": 1, "best_of": 2}, 1)], ids=str)
def test_sampling_temperature_follows_from_the_parameters(serve, parameters, temperature):
    first, *_ = post_and_get_requests(serve, {"parameters": parameters})
    assert first.sampling.temperature == temperature


@pytest.mark.parametrize(("response_format", "constrained"), [
    ({"type": "text", "schema": {"type": "object"}}, True), ({"type": "json_object"}, True), ({"type": "Text"}, True),
    ({"type": "JsonSchema", "schema": None}, False)], ids=str)
def test_schema_is_enforced_regardless_of_the_format_type(serve, monkeypatch, response_format, constrained):
    async def compile_grammar(_, grammar, tenant_name):
        return grammar.source
    monkeypatch.setattr("router.grammars.compiler_client.GrammarCompiler.compile", compile_grammar)
    [request] = post_and_get_requests(serve, {"parameters": {"response_format": response_format}}, grammars=True)
    assert (request.grammar is not None) == constrained
