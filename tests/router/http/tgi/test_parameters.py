"""Conversion of TGI's and LoRAX's parameters to `Wanted`."""

import pytest

from router.adapters.reference import Named
from router.http.lorax.parameters import LoraxParameters
from router.http.tgi.parameters import Shared
from router.http.tgi.routes import Generate
from router.http.transport.headers import Caller
from router.request import ANYONE
from router.validation.validator import Wanted

CALLER = Caller(ANYONE, "mine", 0.0, None, token="theirs")
GIVEN = {
    "adapter_id": "a", "adapter_source": "s3", "best_of": 2, "temperature": 0.5, "repetition_penalty": 1.5, "top_k": 3,
    "top_p": 0.25, "typical_p": 0.75, "do_sample": True, "max_new_tokens": 7, "stop": ["x", "y"], "truncate": 9,
    "watermark": True, "decoder_input_details": True, "seed": 11}
ELSEWHERE = {"frequency_penalty", "return_full_text", "details", "api_token", "merged_adapters"}


def test_parameters_are_wanted_by_whoever_asks():
    assert Shared.model_validate(GIVEN).as_wanted("hi", CALLER) == Wanted(
        prompt="hi", adapter=Named("a", "s3", "theirs"), best_of=2, temperature=0.5, repetition_penalty=1.5, top_k=3,
        top_p=0.25, typical_p=0.75, do_sample=True, max_new_tokens=7, stop_strings=("x", "y"), truncate=9,
        watermark=True, prompt_logprobs=True, seed=11, tenant=ANYONE, request_id="mine")


def test_no_parameter_is_forgotten():
    assert GIVEN.keys() | ELSEWHERE == Shared.model_fields.keys()


@pytest.mark.parametrize("name", GIVEN.keys() - {"adapter_source"})
def test_it_is_the_same_in_both_dialects(name):
    parameters = {name: GIVEN[name]}
    tgi = Generate.model_validate({"inputs": "hi", "parameters": parameters}).wanted(CALLER)
    lorax = LoraxParameters.model_validate(parameters).wanted("hi", CALLER, None)
    changed = {field for field in Wanted.__slots__ if getattr(tgi, field) != getattr(Wanted(prompt="hi"), field)}
    assert len(changed) == 2  # the parameter and `request_id`
    assert {getattr(lorax, field) == getattr(tgi, field) for field in changed} == {True}


def test_a_penalty_is_by_how_often_a_token_came_only_in_loraxs():
    """LoRAX's `frequency_penalty` uses a token's count, TGI's its share of all tokens."""
    tgi = Generate.model_validate({"inputs": "hi", "parameters": {"frequency_penalty": 0.5}}).wanted(CALLER)
    lorax = LoraxParameters.model_validate({"frequency_penalty": 0.5}).wanted("hi", CALLER, None)
    assert (tgi.relative_frequency_penalty, tgi.frequency_penalty) == (0.5, None)
    assert (lorax.relative_frequency_penalty, lorax.frequency_penalty) == (None, 0.5)
