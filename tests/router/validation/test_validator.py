"""Validation of input parameters, and the requests built from them."""

import asyncio
import math
from contextlib import closing
from dataclasses import replace

import pytest

from router.block_hash import block_hashes
from router.config import RouterConfig
from router.errors import InvalidRequest, TimedOut
from router.grammars.schema import Grammar
from router.request import Resource, Tenant
from router.scheduler.plan import ModelFacts
from router.text.chat_template import Conversation, plain_template
from router.text.prompts import Names
from router.text.tokenizer import byte_tokenizer
from router.validation import validator as validation
from router.validation.validator import Validator, Wanted, draw_key

FACTS = ModelFacts(model="m", device="cpu", dtype="float32", vocabulary_size=512, max_positions=2048, block_size=16,
                   num_blocks=100)
CONFIG = RouterConfig(max_input_tokens=1000)
TOKENIZER = byte_tokenizer()
TENANT = Tenant("a", weight=3.0)


def choices(config=CONFIG, facts=FACTS, number=None, **wanted):
    with closing(Validator(config, facts, TOKENIZER, plain_template(), number)) as validator:
        return asyncio.run(validator.choices(Wanted(**{"prompt": "warp"} | wanted)))


def request(**wanted):
    [choice] = choices(**wanted)
    return choice.request


def refusal(**wanted):
    with pytest.raises(InvalidRequest) as refused:
        choices(**wanted)
    return str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def test_a_bare_prompt_is_greedy_and_may_fill_what_is_left():
    made = request()
    assert made.prompt == tuple(b"warp")
    assert made.max_new_tokens == 1600 - 4
    assert made.sampling.temperature == 0
    assert made.end_tokens == {256}
    assert made.key == 0


def test_who_ignores_end_tokens_has_none():
    assert request(ignore_eos=True).end_tokens == set()


@pytest.mark.slow
def test_every_choice_needs_the_same_grammar_and_ends_where_that_does():
    made = choices(facts=replace(FACTS, grammars=True), number=lambda kind, source: Resource(kind, len(source) and 7),
                   grammar=Grammar("regex", "a"), best_of=2, do_sample=True, ignore_eos=True)
    assert [choice.request.grammar for choice in made] == [Resource("grammar", 7)] * 2
    assert [choice.request.end_tokens for choice in made] == [{256}] * 2


def test_the_frequency_penalty_of_tgi_is_relative():
    sampling = request(relative_frequency_penalty=0.5).sampling
    assert (sampling.relative_frequency_penalty, sampling.frequency_penalty) == (0.5, 0)


def test_the_penalties_of_openai_are_passed_on():
    sampling = request(frequency_penalty=0.5, presence_penalty=-0.5).sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)
    assert sampling.relative_frequency_penalty == 0


def test_who_wants_no_draws_gets_none_whatever_else_is_given():
    made = request(greedy=True, do_sample=True, top_p=0.5)
    assert (made.sampling.temperature, made.key) == (0, 0)


def test_an_end_token_beyond_the_logits_is_none():
    [choice] = choices(facts=replace(FACTS, vocabulary_size=256))
    assert choice.request.end_tokens == set()


@pytest.mark.parametrize("wanted", [
    {"do_sample": True}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.9}, {"typical_p": 0.9}])
def test_parameters_of_sampling_switch_it_on(wanted):
    assert request(**wanted).sampling.temperature == wanted.get("temperature", 1.0)


@pytest.mark.parametrize("wanted", [{"temperature": 1.0}, {"repetition_penalty": 1.2}, {"watermark": True}])
def test_other_parameters_do_not(wanted):
    assert request(**wanted).sampling.temperature == 0


def test_values_are_those_that_a_shard_will_see():
    assert request(top_p=0.9).sampling.top_p == pytest.approx(0.9, abs=1e-7)
    assert request(top_p=0.9).sampling.top_p != 0.9


def test_neutral_values_cost_nothing():
    sampling = request(repetition_penalty=1.0, frequency_penalty=0.0, top_k=512, top_n_tokens=0).sampling
    assert (sampling.repetition_penalty, sampling.top_k) == (0, 0)


def test_a_prompt_may_be_cut_to_its_last_tokens():
    assert request(prompt="weaving", truncate=3).prompt == tuple(b"ing")


def test_a_long_prompt_passes_when_it_is_cut():
    assert len(request(prompt="x" * 5000, truncate=1000, max_new_tokens=1).prompt) == 1000


def test_messages_become_a_prompt_by_the_template():
    [choice] = choices(prompt=Conversation(({"role": "user", "content": "hi"},)))
    assert choice.request.prompt == tuple(b"user: hi\nassistant: ")
    assert choice.num_characters == 20


def test_a_refusal_speaks_in_the_words_of_the_dialect():
    names = Names(prompt="messages", max_new_tokens="max_tokens", truncate="")
    assert refusal(names=names, max_new_tokens=0) == "`max_tokens` must be at least 1, got 0"
    assert refusal(names=names, prompt="") == "`messages` must not be an empty string"
    told = refusal(names=names, prompt="x" * 1001)
    assert told == "`messages` must have at most 1000 tokens (--max-input-tokens), got 1001; shorten it"
    told = refusal(names=names, prompt="x" * 1000, max_new_tokens=601)
    assert told.startswith("`messages` (1000 tokens) and `max_tokens` (601) must be at most 1600 together")
    assert told.endswith("shorten one")


def test_more_tokens_than_there_are_places_are_cut_to_what_is_left():
    assert request(max_new_tokens=100_000).max_new_tokens == 1600 - 4


def test_stop_strings_and_flags_are_passed_on():
    made = request(stop_strings=("a", "b"), prompt_logprobs=True, watermark=True, top_n_tokens=3)
    assert made.stop_strings == ("a", "b")
    assert made.prompt_logprobs
    assert made.sampling.watermark
    assert made.sampling.top_n_tokens == 3


def test_request_ids_are_long_and_random():
    assert len({request().id for _ in range(3)}) == 3
    assert len(request().id) == 32


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


def test_a_seed_leads_to_the_same_draws_everywhere():
    assert request(do_sample=True, seed=7).key == draw_key(7, 0) == 0xea9aacf0f672956f


def test_a_seed_that_was_drawn_can_be_sent_again():
    [choice] = choices(do_sample=True)
    assert 0 <= choice.seed < 2**53
    assert request(do_sample=True, seed=choice.seed).key == choice.request.key


def test_every_choice_has_a_seed_of_its_own():
    first, second = choices(do_sample=True, best_of=2)
    assert first.seed != second.seed
    assert request(do_sample=True, seed=second.seed).key == second.request.key


def test_greedy_requests_have_no_seed():
    [choice] = choices(seed=7)
    assert choice.seed is None


def test_the_largest_seed_is_a_seed():
    assert request(do_sample=True, seed=2**64 - 1).key == draw_key(2**64 - 1, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Rejections, in the order of the checks

REFUSALS = [
    ({"best_of": 3}, "`best_of` must be at most 2 (--max-best-of), got 3"),
    ({"best_of": 2}, "`best_of` is 2, but nothing is sampled"),
    ({"temperature": 0.0}, "`temperature` must be above 0, got 0.0"),
    ({"repetition_penalty": -1.0}, "`repetition_penalty` must be above 0, got -1.0"),
    ({"relative_frequency_penalty": 2.1}, "`frequency_penalty` must be at least -2.0 and at most 2.0, got 2.1"),
    ({"frequency_penalty": -2.1}, "`frequency_penalty` must be at least -2.0 and at most 2.0, got -2.1"),
    ({"presence_penalty": 2.1}, "`presence_penalty` must be at least -2.0 and at most 2.0, got 2.1"),
    ({"top_p": 1.0}, "`top_p` must be above 0 and below 1, got 1.0"),
    ({"typical_p": 0.0}, "`typical_p` must be above 0 and below 1, got 0.0"),
    ({"top_k": 0}, "`top_k` must be at least 1, got 0"),
    ({"max_new_tokens": 0}, "`max_new_tokens` must be at least 1, got 0"),
    ({"stop_strings": ("a",) * 5}, "`stop` must hold at most 4 strings (--max-stop-sequences), got 5"),
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


@pytest.mark.parametrize(("wanted", "message"), REFUSALS, ids=[message.split("`")[1] for _, message in REFUSALS])
def test_a_refusal_names_field_limit_and_value(wanted, message):
    assert refusal(**{"prompt": "x" * 1000} | wanted).startswith(message)


@pytest.mark.parametrize("index", [
    index for index in range(2, len(REFUSALS) - 2) if REFUSALS[index][0].keys() != REFUSALS[index + 1][0].keys()])
def test_the_first_rule_that_is_broken_is_told(index):
    (earlier, message), (later, _) = REFUSALS[index], REFUSALS[index + 1]
    assert refusal(**{"prompt": "x" * 1000} | later | earlier).startswith(message)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
@pytest.mark.parametrize("name", [
    "temperature", "repetition_penalty", "frequency_penalty", "presence_penalty", "top_p", "typical_p"])
def test_numbers_that_a_shard_could_not_hold_are_refused(name, value):
    assert refusal(**{name: value}).startswith(f"`{name}` must be a finite 32-bit number")


def test_a_value_that_rounds_to_a_bound_counts_as_the_bound():
    assert "`temperature` must be above 0" in refusal(temperature=1e-60)
    assert "`top_p` must be above 0 and below 1" in refusal(top_p=1 - 1e-12)


@pytest.mark.parametrize("wanted", [{"prompt": "\ud800"}, {"stop_strings": ("\udfff",)}, {"cache_salt": "\ud800"}])
def test_half_a_surrogate_pair_is_no_text(wanted):
    assert "surrogate" in refusal(**wanted)


@pytest.mark.parametrize("string", ["", "x" * 1025])
def test_stop_strings_have_a_length(string):
    assert refusal(stop_strings=(string,))


def test_prompt_and_new_tokens_together_name_limit_and_values():
    told = refusal(prompt="x" * 1000, max_new_tokens=601)
    assert told.startswith("`inputs` (1000 tokens) and `max_new_tokens` (601) must be at most 1600 together")


def test_only_1024_new_tokens_must_fit():
    assert request(prompt="x" * 576, max_new_tokens=4_000_000_000).max_new_tokens == 1024
    assert "--max-total-tokens" in refusal(prompt="x" * 577, max_new_tokens=4_000_000_000)


# ---------------------------------------------------------------------------------------------------------------------
# Tenants, request ids and timeouts


def test_the_tenant_and_its_priority_are_passed_on():
    made = request(tenant=TENANT, priority=-10)
    assert (made.tenant, made.priority) == (TENANT, -10)


def test_the_first_choice_has_the_id_that_the_client_knows():
    made = choices(request_id="mine", best_of=2, do_sample=True)
    assert [choice.request.id for choice in made] == ["mine", "mine-2"]


def test_the_time_that_is_left_is_counted_from_when_it_is_tokenised(monkeypatch):
    monkeypatch.setattr(validation, "now", lambda: 10.0)
    assert request(deadline=12.5).timeout == 2.5
    assert request().timeout is None


def test_what_has_no_time_left_is_not_even_submitted(monkeypatch):
    monkeypatch.setattr(validation, "now", lambda: 10.0)
    with pytest.raises(TimedOut):
        choices(deadline=10.0)


# ---------------------------------------------------------------------------------------------------------------------
# Namespaces of the prefix cache


def spaces(*wanted, scope="tenant"):
    return {request(config=RouterConfig(cache_scope=scope), **each).namespace for each in wanted}


def test_tenants_share_nothing_and_neither_do_salts():
    assert len(spaces({}, {"tenant": TENANT}, {"cache_salt": "a"}, {"cache_salt": "b"},
                      {"cache_salt": "b", "tenant": TENANT})) == 5


def test_the_same_tenant_and_salt_share():
    heavier = replace(TENANT, weight=9.0)
    assert len(spaces({"tenant": TENANT, "cache_salt": "a"}, {"tenant": heavier, "cache_salt": "a"})) == 1


def test_everybody_may_share_but_for_a_salt():
    assert len(spaces({}, {"tenant": TENANT}, scope="global")) == 1
    assert len(spaces({}, {"cache_salt": "a"}, scope="global")) == 2


def test_the_blocks_of_a_prompt_have_names_in_its_namespace():
    made = request(prompt="x" * 40)
    assert made.block_hashes == block_hashes(made.namespace, made.prompt, 16)
    assert len(made.block_hashes) == 2


def test_without_a_cache_there_are_no_names():
    made = request(config=RouterConfig(cache_scope="off"), prompt="x" * 40)
    assert (made.namespace, made.block_hashes) == (b"", ())


def test_requests_for_logprobs_of_the_prompt_have_names_too():
    assert request(prompt="x" * 40, prompt_logprobs=True).block_hashes
