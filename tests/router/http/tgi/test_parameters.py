"""Conversion of TGI's and LoRAX's parameters to `GenerationInput`."""

from dataclasses import fields

import pytest

from router.adapters.reference import AdapterReference
from router.http.lorax.parameters import LoraxParameters
from router.http.tgi.parameters import SharedGenerateParameters
from router.http.tgi.routes import GenerateRequest
from router.http.transport.request_context import RequestContext
from router.request import DEFAULT_TENANT
from router.validation.validator import GenerationInput

GENERATION_INPUT_FIELDS = [field.name for field in fields(GenerationInput)]
CALLER = RequestContext(DEFAULT_TENANT, "mine", 0.0, None, source_token="theirs")
PARAMETERS = {
    "adapter_id": "a", "adapter_source": "s3", "best_of": 2, "temperature": 0.5, "repetition_penalty": 1.5, "top_k": 3,
    "top_p": 0.25, "typical_p": 0.75, "do_sample": True, "max_new_tokens": 7, "stop": ["x", "y"], "truncate": 9,
    "watermark": True, "decoder_input_details": True, "seed": 11}
OTHER_PARAMETERS = {"frequency_penalty", "return_full_text", "details", "api_token", "merged_adapters"}


def test_parameters_become_a_generation_input():
    assert SharedGenerateParameters.model_validate(PARAMETERS).base_generation_input("hi", CALLER) == GenerationInput(
        prompt="hi", adapter=AdapterReference("a", "s3", "theirs"), best_of=2, temperature=0.5, repetition_penalty=1.5,
        top_k=3, top_p=0.25, typical_p=0.75, do_sample=True, max_new_tokens=7, stop_strings=("x", "y"), truncate=9,
        watermark=True, prompt_logprobs=True, seed=11, tenant=DEFAULT_TENANT, request_id="mine")


def test_every_shared_parameter_is_tested():
    assert PARAMETERS.keys() | OTHER_PARAMETERS == SharedGenerateParameters.model_fields.keys()


@pytest.mark.parametrize("name", PARAMETERS.keys() - {"adapter_source"})
def test_common_parameters_mean_the_same_in_tgi_and_lorax(name):
    parameters = {name: PARAMETERS[name]}
    tgi = GenerateRequest.model_validate({"inputs": "hi", "parameters": parameters}).to_generation_input(CALLER)
    lorax = LoraxParameters.model_validate(parameters).to_generation_input("hi", CALLER, None)
    changed = {field for field in GENERATION_INPUT_FIELDS if getattr(tgi, field)
               != getattr(GenerationInput(prompt="hi"), field)}
    assert len(changed) == 2  # the parameter and `request_id`
    assert {getattr(lorax, field) == getattr(tgi, field) for field in changed} == {True}


def test_frequency_penalty_is_relative_in_tgi_and_absolute_in_lorax():
    """LoRAX's `frequency_penalty` uses a token's count, TGI's its share of all tokens."""
    tgi = GenerateRequest.model_validate({"inputs": "hi",
                                          "parameters": {"frequency_penalty": 0.5}}).to_generation_input(CALLER)
    lorax = LoraxParameters.model_validate({"frequency_penalty": 0.5}).to_generation_input("hi", CALLER, None)
    assert (tgi.relative_frequency_penalty, tgi.frequency_penalty) == (0.5, None)
    assert (lorax.relative_frequency_penalty, lorax.frequency_penalty) == (None, 0.5)
