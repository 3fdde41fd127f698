"""Validation of input parameters, and the requests built from them."""

import asyncio
import math
from contextlib import closing
from dataclasses import replace

import pytest

from router.config import RouterConfig
from router.errors import InvalidRequest, TimedOut
from router.grammars.parameters import Grammar
from router.model_info import ModelInfo
from router.request import LoadableResource, Tenant, hash_blocks
from router.text.chat_template import Conversation, simulated_model_template
from router.text.prompt_encoder import DialectParameterNames
from router.text.tokenizer import Tokenizer, create_byte_tokenizer
from router.validation import validator as validation
from router.validation.validator import GenerationInput, RequestValidator, make_sampling_key

MODEL_INFO = ModelInfo(model="m", device="cpu", dtype="float32", vocabulary_size=512, max_positions=2048, block_size=16,
                       num_blocks=100)
CONFIG = RouterConfig(max_input_tokens=1000)
BYTE_TOKENIZER = create_byte_tokenizer()
TENANT = Tenant("a", weight=3.0)


def validate(config=CONFIG, facts=MODEL_INFO, make_resource=None, tokenizer=BYTE_TOKENIZER, **input_fields):
    with closing(RequestValidator(config, facts, tokenizer, simulated_model_template(), make_resource)) as validator:
        return asyncio.run(validator.validate(GenerationInput(**{"prompt": "warp"} | input_fields)))


def validate_single(**input_fields):
    [choice] = validate(**input_fields)
    return choice.request


def get_validation_error(**input_fields):
    with pytest.raises(InvalidRequest) as refused:
        validate(**input_fields)
    return str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def test_default_request_is_greedy_and_may_use_the_remaining_tokens():
    made = validate_single()
    assert made.prompt == tuple(b"warp")
    assert made.max_new_tokens == 1600 - 4
    assert made.sampling.temperature == 0
    assert made.end_tokens == {256}
    assert made.sampling_key == 0


def test_ignore_eos_removes_the_end_tokens():
    assert validate_single(ignore_eos=True).end_tokens == set()


def make_grammar_resource(kind, source):
    assert source == "start: /a+/"
    return LoadableResource(kind, 7)


@pytest.mark.slow
def test_grammar_is_compiled_and_gets_a_resource_number():
    [choice] = validate(facts=replace(MODEL_INFO, grammars=True), make_resource=make_grammar_resource,
                        grammar=Grammar("regex", "a+"))
    assert choice.request.grammar == LoadableResource("grammar", 7)


@pytest.mark.parametrize(("changed", "reason"), [
    ({"config": RouterConfig(disable_grammar_support=True)}, "grammars are switched off (--disable-grammar-support)"),
    ({"facts": replace(MODEL_INFO, grammars=False)}, "this model is served without grammars"),
    ({"make_resource": None}, "this model is served without grammars"),
    ({"tokenizer": Tokenizer(create_byte_tokenizer()._tokenizer, end_tokens=[512])},
     "this model has no end token, so no answer could end where its grammar does"),
], ids=["switched off", "not taken", "nowhere", "endless"])
def test_unsupported_grammar_is_rejected_with_the_reason(changed, reason):
    served = {"facts": replace(MODEL_INFO, grammars=True), "make_resource": make_grammar_resource}
    message = get_validation_error(**served | changed, grammar=Grammar("regex", "a+"),
                                   parameter_names=DialectParameterNames(grammar="response_format"))
    assert message == f"`response_format` is given, but {reason}; leave it out"


def test_no_grammar_is_needed_where_grammars_are_off():
    [choice] = validate(config=replace(CONFIG, disable_grammar_support=True))
    assert choice.request.grammar is None


@pytest.mark.slow
def test_resumed_tokens_must_fit_the_grammar():
    served = {"facts": replace(MODEL_INFO, grammars=True), "make_resource": make_grammar_resource,
              "grammar": Grammar("regex", "a+")}
    [choice] = validate(**served, resume_token_ids=tuple(b"aa"))
    assert (choice.request.resumed_tokens, choice.request.grammar) == (tuple(b"aa"), LoadableResource("grammar", 7))
    assert get_validation_error(**served, resume_token_ids=tuple(b"axa"),
                                parameter_names=DialectParameterNames(grammar="response_format")) == (
        "a token in `resume_token_ids` must fit `response_format`, got 120 at index 1, which it does not allow there")


@pytest.mark.slow
def test_every_choice_uses_the_same_grammar_and_its_end_tokens():
    made = validate(facts=replace(MODEL_INFO, grammars=True),
                    make_resource=lambda kind, source: LoadableResource(kind, len(source) and 7),
                    grammar=Grammar("regex", "a"), best_of=2, do_sample=True, ignore_eos=True)
    assert [choice.request.grammar for choice in made] == [LoadableResource("grammar", 7)] * 2
    assert [choice.request.end_tokens for choice in made] == [{256}] * 2


def test_tgi_frequency_penalty_is_relative():
    sampling = validate_single(relative_frequency_penalty=0.5).sampling
    assert (sampling.relative_frequency_penalty, sampling.frequency_penalty) == (0.5, 0)


def test_openai_penalties_are_passed_on():
    sampling = validate_single(frequency_penalty=0.5, presence_penalty=-0.5).sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert sampling.relative_frequency_penalty == 0


def test_greedy_option_overrides_sampling_parameters():
    made = validate_single(greedy=True, do_sample=True, top_p=0.5)
    assert (made.sampling.temperature, made.sampling_key) == (0, 0)


def test_end_token_beyond_the_vocabulary_is_dropped():
    [choice] = validate(facts=replace(MODEL_INFO, vocabulary_size=256))
    assert choice.request.end_tokens == set()


@pytest.mark.parametrize("fields", [
    {"do_sample": True}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.9}, {"typical_p": 0.9}])
def test_sampling_parameters_enable_sampling(fields):
    assert validate_single(**fields).sampling.temperature == fields.get("temperature", 1.0)


@pytest.mark.parametrize("fields", [{"temperature": 1.0}, {"repetition_penalty": 1.2}, {"watermark": True}])
def test_other_parameters_do_not_enable_sampling(fields):
    assert validate_single(**fields).sampling.temperature == 0


def test_values_are_rounded_to_32_bit_floats():
    assert validate_single(top_p=0.9).sampling.top_p == pytest.approx(0.9, abs=1e-7)
    assert validate_single(top_p=0.9).sampling.top_p != 0.9


def test_neutral_values_are_dropped():
    sampling = validate_single(repetition_penalty=1.0, frequency_penalty=0.0, top_k=512, top_n_tokens=0).sampling
    assert (sampling.repetition_penalty, sampling.top_k) == (0, 0)


def test_parameters_of_tokens_reach_the_request():
    made = validate_single(logit_bias={"9": 2.5, "7": -100.0}, allowed_token_ids=(5, 3, 5), min_tokens=4, min_p=0.5,
                           stop_token_ids=(8,), raw_logprobs=True)
    sampling = made.sampling
    assert (sampling.biased_tokens, sampling.biases, sampling.allowed_tokens) == ((7, 9), (-100.0, 2.5), (3, 5))
    assert (sampling.min_tokens, sampling.min_p, sampling.raw_logprobs) == (4, 0.5, True)
    assert made.end_tokens == {8, 256}


def test_only_stop_tokens_end_a_text_that_ignores_end_tokens():
    assert validate_single(stop_token_ids=(8,), ignore_eos=True).end_tokens == {8}


def test_prompt_can_be_truncated_to_its_last_tokens():
    assert validate_single(prompt="weaving", truncate=3).prompt == tuple(b"ing")


def test_truncated_long_prompt_is_accepted():
    assert len(validate_single(prompt="x" * 5000, truncate=1000, max_new_tokens=1).prompt) == 1000


def test_chat_template_renders_messages_into_the_prompt():
    [choice] = validate(prompt=Conversation(({"role": "user", "content": "hi"},)))
    assert choice.request.prompt == tuple(b"user: hi\nassistant: ")
    assert choice.num_prompt_characters == 20


def test_rejection_uses_the_parameter_names_of_the_dialect():
    names = DialectParameterNames(prompt="messages", max_new_tokens="max_tokens", truncate="")
    assert get_validation_error(parameter_names=names, max_new_tokens=0) == "`max_tokens` must be at least 1, got 0"
    assert get_validation_error(parameter_names=names, prompt="") == "`messages` must not be an empty string"
    message = get_validation_error(parameter_names=names, prompt="x" * 1001)
    assert message == "`messages` must have at most 1000 tokens (--max-input-tokens), got 1001; shorten it"
    message = get_validation_error(parameter_names=names, prompt="x" * 1000, max_new_tokens=601)
    assert message.startswith("`messages` (1000 tokens) and `max_tokens` (601) must be at most 1600 together")
    assert message.endswith("shorten one")


def test_max_new_tokens_is_cut_to_the_remaining_tokens():
    assert validate_single(max_new_tokens=100_000).max_new_tokens == 1600 - 4


def test_stop_strings_and_flags_are_passed_on():
    made = validate_single(stop_strings=("a", "b"), prompt_logprobs=True, watermark=True, top_n_tokens=3)
    assert made.stop_strings == ("a", "b")
    assert made.prompt_logprobs
    assert made.sampling.watermark
    assert made.sampling.top_n_tokens == 3


def test_request_ids_are_long_and_random():
    assert len({validate_single().id for _ in range(3)}) == 3
    assert len(validate_single().id) == 32


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


def test_seed_gives_the_same_sampling_key_everywhere():
    assert validate_single(do_sample=True, seed=7).sampling_key == make_sampling_key(7, 0) == 0xea9aacf0f672956f


def test_generated_seed_can_be_sent_again():
    [choice] = validate(do_sample=True)
    assert 0 <= choice.seed < 2**53
    assert validate_single(do_sample=True, seed=choice.seed).sampling_key == choice.request.sampling_key


def test_every_choice_has_its_own_seed():
    first, second = validate(do_sample=True, best_of=2)
    assert first.seed != second.seed
    assert validate_single(do_sample=True, seed=second.seed).sampling_key == second.request.sampling_key


def test_greedy_requests_have_no_seed():
    [choice] = validate(seed=7)
    assert choice.seed is None


def test_largest_seed_is_accepted():
    assert validate_single(do_sample=True, seed=2**64 - 1).sampling_key == make_sampling_key(2**64 - 1, 0)


@pytest.mark.parametrize(("fields", "message"), [
    ({"min_tokens": 1, "grammar": Grammar("regex", "a")}, "`min_tokens` and `grammar` are given, but a grammar alone"),
    ({"allowed_token_ids": (1,), "grammar": Grammar("regex", "a")}, "`allowed_token_ids` and `grammar` are given"),
    ({"allowed_token_ids": (7, 256), "stop_token_ids": (7, 8), "min_tokens": 2},
     "`allowed_token_ids` must hold a token that does not end the text, since `min_tokens` is 2")])
def test_parameters_that_leave_no_token_to_choose_are_rejected(fields, message):
    assert get_validation_error(**fields).startswith(message)


# ---------------------------------------------------------------------------------------------------------------------
# Rejections, in the order of the checks

REJECTED_INPUTS = [
    ({"best_of": 3}, "`best_of` must be at most 2 (--max-best-of), got 3"),
    ({"best_of": 2}, "`best_of` is 2, but nothing is sampled"),
    ({"temperature": 0.0}, "`temperature` must be above 0, got 0.0"),
    ({"repetition_penalty": -1.0}, "`repetition_penalty` must be above 0, got -1.0"),
    ({"relative_frequency_penalty": 2.1}, "`frequency_penalty` must be at least -2.0 and at most 2.0, got 2.1"),
    ({"frequency_penalty": -2.1}, "`frequency_penalty` must be at least -2.0 and at most 2.0, got -2.1"),
    ({"presence_penalty": 2.1}, "`presence_penalty` must be at least -2.0 and at most 2.0, got 2.1"),
    ({"top_p": 1.0}, "`top_p` must be above 0 and below 1, got 1.0"),
    ({"typical_p": 0.0}, "`typical_p` must be above 0 and below 1, got 0.0"),
    ({"min_p": -0.5}, "`min_p` must be at least 0 and at most 1, got -0.5"),
    ({"min_p": 1.5}, "`min_p` must be at least 0 and at most 1, got 1.5"),
    ({"top_k": 0}, "`top_k` must be at least 1, got 0"),
    ({"logit_bias": {"7": 100.5}}, "`logit_bias` must be at least -100 and at most 100, got 100.5"),
    ({"logit_bias": {"seven": 1.0}}, "`logit_bias` must have ids of tokens as keys, got 'seven'"),
    ({"logit_bias": {"512": 1.0}}, "a token in `logit_bias` must be at least 0 and below 512, the size of the voca"),
    ({"logit_bias": {str(i): 1.0 for i in range(1025)}}, "`logit_bias` must hold at most 1024 tokens, got 1025"),
    ({"logit_bias": {"7": 1.0, "07": 2.0}}, "`logit_bias` has the token 7 twice"),
    ({"allowed_token_ids": ()}, "`allowed_token_ids` must hold at least one token, got none"),
    ({"allowed_token_ids": (512,)}, "a token in `allowed_token_ids` must be at least 0 and below 512"),
    ({"min_tokens": 5, "max_new_tokens": 4}, "`min_tokens` must be at most `max_new_tokens` (4), got 5"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be at least 1, got 0"),
    ({"stop_strings": ("a",) * 5}, "`stop` must hold at most 4 strings (--max-stop-sequences), got 5"),
    ({"stop_token_ids": (-1,)}, "a token in `stop_token_ids` must be at least 0 and below 512"),
    ({"stop_token_ids": (1,), "grammar": Grammar("regex", "a")}, "`stop_token_ids` and `grammar` are given, but a"),
    ({"seed": 1, "best_of": 2, "do_sample": True}, "`seed` must not be given with `best_of` above 1"),
    ({"top_n_tokens": 6}, "`top_n_tokens` must be at most 5 (--max-top-n-tokens), got 6"),
    ({"prompt": ""}, "`inputs` must not be an empty string"),
    ({"truncate": 1001}, "`truncate` must be at least 1 and at most 1000 (--max-input-tokens), got 1001"),
    ({"cache_salt": ""}, "`cache_salt` must not be an empty string"),
    ({"cache_salt": "x" * 257}, "`cache_salt` must have at most 256 characters, got 257"),
    ({"priority": 11}, "`priority` must be at least -10 and at most 10, got 11"),
    ({"max_new_tokens": 1597}, "`inputs` (100"),
    ({"prompt": "x" * 1001}, "`inputs` must have at most 1000 tokens (--max-input-tokens), got 1001"),
    ({"grammar": Grammar("regex", "a")}, "`grammar` is given, but this model is served without grammars; leave it out"),
    ({"adapter": "a"}, "`adapter_id` is given"),
]


@pytest.mark.parametrize(("fields", "message"), REJECTED_INPUTS,
                         ids=[message.split("`")[1] for _, message in REJECTED_INPUTS])
def test_rejection_names_field_limit_and_value(fields, message):
    assert get_validation_error(**{"prompt": "x" * 1000} | fields).startswith(message)


@pytest.mark.parametrize("index", [index for index in range(2, len(REJECTED_INPUTS) - 2)
                                   if REJECTED_INPUTS[index][0].keys() != REJECTED_INPUTS[index + 1][0].keys()])
def test_first_violated_rule_is_reported(index):
    (earlier, message), (later, _) = REJECTED_INPUTS[index], REJECTED_INPUTS[index + 1]
    assert get_validation_error(**{"prompt": "x" * 1000} | later | earlier).startswith(message)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("name", [
    "temperature", "repetition_penalty", "frequency_penalty", "presence_penalty", "top_p", "typical_p"])
def test_numbers_beyond_32_bit_floats_are_rejected(name, value):
    assert get_validation_error(**{name: value}).startswith(f"`{name}` must be a finite 32-bit number")


def test_value_that_rounds_to_a_bound_counts_as_the_bound():
    assert "`temperature` must be above 0" in get_validation_error(temperature=1e-60)
    assert "`top_p` must be above 0 and below 1" in get_validation_error(top_p=1 - 1e-12)


@pytest.mark.parametrize("fields", [{"prompt": "\ud800"}, {"stop_strings": ("\udfff",)}, {"cache_salt": "\ud800"}])
def test_lone_surrogate_is_rejected(fields):
    assert "surrogate" in get_validation_error(**fields)


@pytest.mark.parametrize("string", ["", "x" * 1025])
def test_stop_string_length_is_limited(string):
    assert get_validation_error(stop_strings=(string,))


def test_total_length_error_names_limit_and_values():
    message = get_validation_error(prompt="x" * 1000, max_new_tokens=601)
    assert message.startswith("`inputs` (1000 tokens) and `max_new_tokens` (601) must be at most 1600 together")


def test_only_1024_of_many_requested_new_tokens_must_fit():
    assert validate_single(prompt="x" * 576, max_new_tokens=4_000_000_000).max_new_tokens == 1024
    assert "--max-total-tokens" in get_validation_error(prompt="x" * 577, max_new_tokens=4_000_000_000)


# ---------------------------------------------------------------------------------------------------------------------
# Tenants, request ids and timeouts


def test_tenant_and_priority_are_passed_on():
    made = validate_single(tenant=TENANT, priority=-10)
    assert (made.tenant, made.priority) == (TENANT, -10)


def test_first_choice_has_the_request_id_of_the_client():
    made = validate(request_id="mine", best_of=2, do_sample=True)
    assert [choice.request.id for choice in made] == ["mine", "mine-2"]


def test_timeout_is_the_time_left_after_tokenizing(monkeypatch):
    monkeypatch.setattr(validation, "now", lambda: 10.0)
    assert validate_single(deadline=12.5).timeout == 2.5
    assert validate_single().timeout is None


def test_request_without_time_left_is_not_submitted(monkeypatch):
    monkeypatch.setattr(validation, "now", lambda: 10.0)
    with pytest.raises(TimedOut):
        validate(deadline=10.0)


# ---------------------------------------------------------------------------------------------------------------------
# Namespaces of the prefix cache


def get_namespaces(*inputs, scope="tenant"):
    return {validate_single(config=RouterConfig(cache_scope=scope), **each).cache_namespace for each in inputs}


def test_tenants_and_salts_have_separate_namespaces():
    assert len(get_namespaces({}, {"tenant": TENANT}, {"cache_salt": "a"}, {"cache_salt": "b"},
                              {"cache_salt": "b", "tenant": TENANT})) == 5


def test_same_tenant_and_salt_share_a_namespace():
    heavier = replace(TENANT, weight=9.0)
    assert len(get_namespaces({"tenant": TENANT, "cache_salt": "a"}, {"tenant": heavier, "cache_salt": "a"})) == 1


def test_global_scope_separates_only_salts():
    assert len(get_namespaces({}, {"tenant": TENANT}, scope="global")) == 1
    assert len(get_namespaces({}, {"cache_salt": "a"}, scope="global")) == 2


def test_prompt_blocks_are_hashed_in_their_namespace():
    made = validate_single(prompt="x" * 40)
    assert made.block_hashes == hash_blocks(made.cache_namespace, made.prompt, 16)
    assert len(made.block_hashes) == 2


def test_disabled_cache_computes_no_hashes():
    made = validate_single(config=RouterConfig(cache_scope="off"), prompt="x" * 40)
    assert (made.cache_namespace, made.block_hashes) == (b"", ())


def test_requests_with_prompt_logprobs_have_block_hashes():
    assert validate_single(prompt="x" * 40, prompt_logprobs=True).block_hashes


# ---------------------------------------------------------------------------------------------------------------------
# Tokens of a text that goes on


def test_request_goes_on_behind_the_tokens_that_the_client_has():
    [choice] = validate(resume_token_ids=tuple("é".encode()[:1]), max_new_tokens=2)
    assert choice.request.resumed_tokens == (0xC3,)
    assert choice.resumed_text.pieces == ("",)
    assert choice.resumed_text.detokenizer.step(0xA9) == "é"


def test_request_without_a_token_begins_anew():
    [choice] = validate(resume_token_ids=())
    assert (choice.request.resumed_tokens, choice.resumed_text) == ((), None)


def test_sampled_text_goes_on_with_its_seed():
    [first], [resumed] = (validate(do_sample=True, seed=7, resume_token_ids=tokens) for tokens in ((), (97,)))
    assert first.request.sampling_key == resumed.request.sampling_key != 0


@pytest.mark.parametrize(("fields", "message"), [
    ({"num_choices": 2}, "`n` must be 1 with `resume_token_ids`, got 2"),
    ({"best_of": 2, "do_sample": True}, "`best_of` must be 1 with `resume_token_ids`, got 2"),
    ({"do_sample": True}, "`seed` must be given with `resume_token_ids` when tokens are sampled"),
    ({"resume_token_ids": (5,) * 1601}, "`resume_token_ids` must hold at most 1600 tokens (--max-total-tokens), got"),
    ({"resume_token_ids": (5, 512)}, "a token in `resume_token_ids` must be at least 0 and below 512, the size of"),
    ({"max_new_tokens": 2}, "`resume_token_ids` must hold fewer than `max_new_tokens` tokens (2), got 2: the text is"),
    ({"resume_token_ids": (5, 256, 5)}, "`resume_token_ids` holds a token that ends the text at index 1, got 256"),
    ({"stop_token_ids": (98,)}, "`resume_token_ids` holds a token that ends the text at index 1, got 98"),
    ({"stop_strings": ("ab",)}, "the text of `resume_token_ids` holds 'ab' of `stop`: the text is complete")])
def test_text_that_cannot_go_on_is_refused_by_name(fields, message):
    assert get_validation_error(**{"resume_token_ids": tuple(b"ab")} | fields).startswith(message)


@pytest.mark.parametrize("fields", [{"stop_strings": ("ab",), "min_tokens": 3}, {"ignore_eos": True}])
def test_what_did_not_end_the_text_then_does_not_end_it_now(fields):
    assert validate_single(resume_token_ids=(*b"ab", 256)[:3 if "ignore_eos" in fields else 2], **fields)
