"""Tests of the flag table of text-generation-inference against the flags of its launcher."""

from collections import Counter

import pytest

from launcher.compat.flag_values import SETTINGS_BY_NAME
from launcher.compat.foreign_flag_table import FlagAction, ForeignFlag
from launcher.compat.tgi import TGI_FLAG_TABLE
from launcher.compat.translate import TranslatedSettings, translate

# The flags of `text-generation-launcher --help`, each with a valid value; a switch has none.
FLAG_EXAMPLES: dict[str, str | None] = {
    "model-id": "org/other", "revision": "refs/pr/1", "dtype": "bfloat16", "quantize": "gptq",
    "kv-cache-dtype": "fp8_e5m2", "speculate": "2", "lora-adapters": "org/one,two=org/other@v2",
    "tokenizer-config-path": "a.json", "disable-grammar-support": None, "enable-prefill-logprobs": None,
    "watermark-gamma": "0.5", "watermark-delta": "2.0", "sharded": "false", "num-shard": "2",
    "shard-uds-path": "/tmp/a", "master-addr": "localhost", "master-port": "29500", "cuda-graphs": "1,2,4",
    "cuda-memory-fraction": "0.8", "disable-custom-kernels": None, "max-concurrent-requests": "5", "max-best-of": "3",
    "max-stop-sequences": "5", "max-top-n-tokens": "6", "max-client-batch-size": "7",
    "max-input-tokens": "100", "max-input-length": "100", "max-total-tokens": "200", "payload-limit": "5000",
    "max-batch-prefill-tokens": "512", "max-batch-total-tokens": "6400", "max-batch-size": "16",
    "waiting-served-ratio": "1.2", "max-waiting-tokens": "10", "validation-workers": "4", "hostname": "127.0.0.1",
    "port": "8080", "prometheus-port": "9001", "api-key": "sk-one", "cors-allow-origin": "https://a.org",
    "ngrok-authtoken": "a", "ngrok-edge": "a", "json-output": None, "otlp-endpoint": "http://a:4317",
    "otlp-service-name": "a", "graceful-termination-timeout": "5", "env": None, "usage-stats": "no-stack",
    "huggingface-hub-cache": "/cache", "max-image-fetch-size": "1000",
}
# Flags that weft does not support and rejects.
REJECTED_FLAGS: dict[str, str | None] = {
    "trust-remote-code": None, "rope-scaling": "linear", "rope-factor": "2.0", "ngrok": None,
    "weights-cache-override": "/a",
}
VARIABLE_EXAMPLES = {
    "HF_API_TOKEN": "hf_one", "LOG_LEVEL": "INFO", "LOG_COLORIZE": "1", "PREFIX_CACHING": "0",
    "PREFILL_CHUNKING": "true", "ATTENTION": "flashinfer", "USE_FLASH_ATTENTION": "false", "TGI_WIGGLE_ROOM": "0.9",
    "REQUEST_LOGPROBS": "true",
    "COMPUTE_TYPE": "gpu", "HF_HUB_ENABLE_HF_TRANSFER": "1", "HF_HUB_USER_AGENT_ORIGIN": "x", "EXLLAMA_VERSION": "2",
    "DISABLE_EXLLAMA": "true",
}
FLAGS_BY_NAME = {flag.name: flag for flag in TGI_FLAG_TABLE.flags}
MODEL_ARGUMENTS = ("--model-id", "org/name")


def get_variable_name(name: str) -> str:
    return name.upper().replace("-", "_")


def translate_arguments(*arguments: str, **environment: str) -> TranslatedSettings:
    model_arguments = () if "--model-id" in arguments or "MODEL_ID" in environment else MODEL_ARGUMENTS
    return translate(TGI_FLAG_TABLE, [*model_arguments, *arguments], environment, lambda: 1)


def make_arguments(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def test_table_has_each_flag_of_the_launcher_once() -> None:
    assert set(FLAGS_BY_NAME) == {*FLAG_EXAMPLES, *REJECTED_FLAGS, *VARIABLE_EXAMPLES}
    assert max(Counter(flag.name for flag in TGI_FLAG_TABLE.flags).values()) == 1


@pytest.mark.parametrize("name", FLAG_EXAMPLES)
def test_flag_and_its_variable_have_the_same_effect(name: str) -> None:
    value = FLAG_EXAMPLES[name]
    by_flag, by_variable = translate_arguments(*make_arguments(name, value)), translate_arguments(
        **{get_variable_name(name): value or "true"})
    assert by_flag.remaining_arguments == by_variable.remaining_arguments == []
    assert (by_flag.settings,
            by_flag.environment_variables) == (by_variable.settings, by_variable.environment_variables)
    assert by_flag.shows_environment == by_variable.shows_environment
    assert [note.replace(f"--{name}", get_variable_name(name), 1) for note in by_flag.notes] == by_variable.notes


@pytest.mark.parametrize("name", FLAG_EXAMPLES)
def test_flags_without_effect_are_noted_unless_not_needed(name: str) -> None:
    value = FLAG_EXAMPLES[name]
    outcome = FLAGS_BY_NAME[name].find_effect(value or "true")
    assert outcome is not None
    default_translation, translation = translate_arguments(), translate_arguments(*make_arguments(name, value))
    same = (default_translation.settings, default_translation.environment_variables,
            default_translation.shows_environment) == (translation.settings, translation.environment_variables,
                                                       translation.shows_environment)
    assert bool(translation.notes) == (outcome.action is FlagAction.IGNORED)
    assert same == (outcome.action in {FlagAction.IGNORED, FlagAction.UNNEEDED})


@pytest.mark.parametrize("name", [name for name in FLAG_EXAMPLES if FLAG_EXAMPLES[name] is None])
def test_switch_may_be_given_as_false(name: str) -> None:
    for translation in (translate_arguments(**{get_variable_name(name): "false"}),
                        translate_arguments(f"--{name}=false")):
        assert (translation.settings, translation.notes,
                translation.shows_environment) == (translate_arguments().settings, [], False)


@pytest.mark.parametrize("name", REJECTED_FLAGS)
def test_unsupported_flags_are_rejected_with_a_reason(name: str) -> None:
    value = REJECTED_FLAGS[name]
    with pytest.raises(ValueError, match=f"--{name} is refused: .{{20}}"):
        translate_arguments(*make_arguments(name, value))
    with pytest.raises(ValueError, match=f"{get_variable_name(name)} is refused: .{{20}}"):
        translate_arguments(**{get_variable_name(name): value or "true"})


@pytest.mark.parametrize("name", ["trust-remote-code", "ngrok"])
def test_rejected_switch_may_be_off(name: str) -> None:
    assert translate_arguments(**{get_variable_name(name): "false"}).settings == translate_arguments().settings


@pytest.mark.parametrize("name", VARIABLE_EXAMPLES)
def test_variable_without_a_flag_is_accepted(name: str) -> None:
    assert FLAGS_BY_NAME[name].spellings == ()
    assert translate_arguments(**{name: VARIABLE_EXAMPLES[name]}).remaining_arguments == []


@pytest.mark.parametrize(("words", "settings"), [
    (("-p", "80"), {"port": ["80"]}),
    (("-g", "5"), {"shutdown_timeout": ["5"]}),
    (("--graceful-termination-timeout", "5"), {"shutdown_timeout": ["5"]}),
    (("--max-input-length", "7"), {"max_input_tokens": ["7"]}),
    (("--cuda-memory-fraction", "0.5"), {"memory_fraction": ["0.5"]}),
    (("--cuda-memory-fraction", "1.0"), {}),
    (("--cors-allow-origin", "https://a", "--cors-allow-origin", "https://b"),
     {"cors_allow_origin": ["https://a", "https://b"]}),
    (("--quantize", "int8"), {"quantize": ["int8"]}),
    (("--quantize", "int4"), {"quantize": ["int4"]}),
    (("--json-output",), {"json_output": ["true"]}),
])
def test_flags_become_settings(words: tuple[str, ...], settings: dict[str, list[str]]) -> None:
    assert translate_arguments(*words).settings == translate_arguments().settings | settings


@pytest.mark.parametrize(("variables", "settings"), [
    ({"LOG_LEVEL": "warn"}, {"log_level": ["warning"]}),
    ({"LOG_LEVEL": "TRACE"}, {"log_level": ["debug"]}),
    ({"LOG_LEVEL": "text_generation_router=debug,info"}, {}),
    ({"PREFIX_CACHING": "false"}, {"cache_scope": ["off"]}),
    ({"PREFIX_CACHING": "1"}, {}),
    ({"PREFILL_CHUNKING": "0"}, {"prefill_policy": ["pause"]}),
    ({"CORS_ALLOW_ORIGIN": "https://a, https://b"}, {"cors_allow_origin": ["https://a", "https://b"]}),
])
def test_variables_become_settings(variables: dict[str, str], settings: dict[str, list[str]]) -> None:
    assert translate_arguments(**variables).settings == translate_arguments().settings | settings


def test_tgi_defaults_apply() -> None:
    assert translate_arguments().settings == {"model_id": ["org/name"], "hostname": ["0.0.0.0"],
                                              "cors_allow_origin": ["*"], "shutdown_timeout": ["90"]}


def test_traces_have_the_service_name_of_tgi() -> None:
    sent = {"otlp_endpoint": ["http://a:4317"], "otlp_service_name": ["text-generation-inference.router"]}
    assert translate_arguments("--otlp-endpoint", "http://a:4317").settings == translate_arguments().settings | sent
    assert translate_arguments(OTLP_ENDPOINT="http://a:4317").settings == translate_arguments().settings | sent
    assert translate_arguments(OTLP_ENDPOINT="http://a:4317", OTLP_SERVICE_NAME="loom").settings == (
        translate_arguments().settings | sent | {"otlp_service_name": ["loom"]})


@pytest.mark.parametrize("value", ["eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "exl2"])
def test_unsupported_quantizations_are_rejected(value: str) -> None:
    with pytest.raises(ValueError, match="--quantize is refused: "):
        translate_arguments("--quantize", value)


@pytest.mark.parametrize("value", ["awq", "compressed-tensors", "gptq", "marlin", "fp8"])
def test_quantizations_named_by_the_checkpoint_need_no_setting(value: str) -> None:
    assert translate_arguments("--quantize", value).settings == translate_arguments().settings


@pytest.mark.parametrize("flag", TGI_FLAG_TABLE.flags, ids=[flag.name for flag in TGI_FLAG_TABLE.flags])
def test_outcomes_have_reasons_and_set_existing_settings(flag: ForeignFlag) -> None:
    for outcome in flag.effects:
        needs_reason = outcome.action in {FlagAction.IGNORED, FlagAction.UNNEEDED, FlagAction.REFUSED}
        assert bool(outcome.reason) == needs_reason
        assert outcome.action not in {FlagAction.SETTING, FlagAction.ADDRESS} or outcome.target_name in SETTINGS_BY_NAME


def test_flag_named_like_a_weft_setting_sets_it() -> None:
    """A new setting of weft with the name of such a flag would make its row wrong."""
    shared_names = {flag.name for flag in TGI_FLAG_TABLE.flags if flag.name.replace("-", "_") in SETTINGS_BY_NAME}
    sets = {flag.name for flag in TGI_FLAG_TABLE.flags for outcome in flag.effects
            if outcome.action in {FlagAction.SETTING, FlagAction.ADDRESS} and outcome.target_name
            == flag.name.replace("-", "_")}
    assert shared_names - {"num-shard"} == sets
