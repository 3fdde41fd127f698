"""Tests of the flag table of text-generation-inference against the flags of its launcher."""

from collections import Counter

import pytest

from launcher.compat.arguments import OURS
from launcher.compat.flag_table import Fate, Flag
from launcher.compat.tgi import TGI
from launcher.compat.translate import Translation, translate

# The flags of `text-generation-launcher --help`, each with a valid value; a switch has none.
FLAGS: dict[str, str | None] = {
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
REFUSED: dict[str, str | None] = {
    "trust-remote-code": None, "rope-scaling": "linear", "rope-factor": "2.0", "ngrok": None,
    "weights-cache-override": "/a",
}
VARIABLES = {
    "HF_API_TOKEN": "hf_one", "LOG_LEVEL": "INFO", "LOG_COLORIZE": "1", "PREFIX_CACHING": "0",
    "PREFILL_CHUNKING": "true", "ATTENTION": "flashinfer", "USE_FLASH_ATTENTION": "false", "TGI_WIGGLE_ROOM": "0.9",
    "REQUEST_LOGPROBS": "true",
    "COMPUTE_TYPE": "gpu", "HF_HUB_ENABLE_HF_TRANSFER": "1", "HF_HUB_USER_AGENT_ORIGIN": "x", "EXLLAMA_VERSION": "2",
    "DISABLE_EXLLAMA": "true",
}
BY_NAME = {flag.name: flag for flag in TGI.flags}
MODEL = ("--model-id", "org/name")


def variable(name: str) -> str:
    return name.upper().replace("-", "_")


def told(*words: str, **environment: str) -> Translation:
    named = () if "--model-id" in words or "MODEL_ID" in environment else MODEL
    return translate(TGI, [*named, *words], environment, lambda: 1)


def line(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def test_the_table_has_what_their_launcher_has_and_nothing_twice() -> None:
    assert set(BY_NAME) == {*FLAGS, *REFUSED, *VARIABLES}
    assert max(Counter(flag.name for flag in TGI.flags).values()) == 1


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_taken_and_so_is_its_variable_which_means_the_same(name: str) -> None:
    value = FLAGS[name]
    by_flag, by_variable = told(*line(name, value)), told(**{variable(name): value or "true"})
    assert by_flag.rest == by_variable.rest == []
    assert (by_flag.settings, by_flag.variables) == (by_variable.settings, by_variable.variables)
    assert by_flag.shows_environment == by_variable.shows_environment
    assert [note.replace(f"--{name}", variable(name), 1) for note in by_flag.notes] == by_variable.notes


@pytest.mark.parametrize("name", FLAGS)
def test_whether_it_has_an_effect_is_told_unless_none_is_needed(name: str) -> None:
    value = FLAGS[name]
    outcome = BY_NAME[name].outcome(value or "true")
    assert outcome is not None
    before, after = told(), told(*line(name, value))
    same = (before.settings, before.variables, before.shows_environment) == (
        after.settings, after.variables, after.shows_environment)
    assert bool(after.notes) == (outcome.fate is Fate.UNUSED)
    assert same == (outcome.fate in {Fate.UNUSED, Fate.SILENT})


@pytest.mark.parametrize("name", [name for name in FLAGS if FLAGS[name] is None])
def test_a_switch_may_be_given_as_false(name: str) -> None:
    for found in (told(**{variable(name): "false"}), told(f"--{name}=false")):
        assert (found.settings, found.notes, found.shows_environment) == (told().settings, [], False)


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_obeyed_is_refused_with_the_reason(name: str) -> None:
    value = REFUSED[name]
    with pytest.raises(ValueError, match=f"--{name} is refused: .{{20}}"):
        told(*line(name, value))
    with pytest.raises(ValueError, match=f"{variable(name)} is refused: .{{20}}"):
        told(**{variable(name): value or "true"})


@pytest.mark.parametrize("name", ["trust-remote-code", "ngrok"])
def test_a_switch_that_is_refused_may_be_off(name: str) -> None:
    assert told(**{variable(name): "false"}).settings == told().settings


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_without_a_flag_is_taken(name: str) -> None:
    assert BY_NAME[name].spellings == ()
    assert told(**{name: VARIABLES[name]}).rest == []


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
    (("--json-output",), {"json_output": ["true"]}),
])
def test_what_flags_become(words: tuple[str, ...], settings: dict[str, list[str]]) -> None:
    assert told(*words).settings == told().settings | settings


@pytest.mark.parametrize(("variables", "settings"), [
    ({"LOG_LEVEL": "warn"}, {"log_level": ["warning"]}),
    ({"LOG_LEVEL": "TRACE"}, {"log_level": ["debug"]}),
    ({"LOG_LEVEL": "text_generation_router=debug,info"}, {}),
    ({"PREFIX_CACHING": "false"}, {"cache_scope": ["off"]}),
    ({"PREFIX_CACHING": "1"}, {}),
    ({"PREFILL_CHUNKING": "0"}, {"prefill_policy": ["pause"]}),
    ({"CORS_ALLOW_ORIGIN": "https://a, https://b"}, {"cors_allow_origin": ["https://a", "https://b"]}),
])
def test_what_variables_become(variables: dict[str, str], settings: dict[str, list[str]]) -> None:
    assert told(**variables).settings == told().settings | settings


def test_what_is_otherwise_by_default_there_is_so_here() -> None:
    assert told().settings == {"model_id": ["org/name"], "hostname": ["0.0.0.0"], "cors_allow_origin": ["*"],
                               "shutdown_timeout": ["90"]}


def test_traces_have_the_name_that_they_have_there_where_any_are_sent() -> None:
    sent = {"otlp_endpoint": ["http://a:4317"], "otlp_service_name": ["text-generation-inference.router"]}
    assert told("--otlp-endpoint", "http://a:4317").settings == told().settings | sent
    assert told(OTLP_ENDPOINT="http://a:4317").settings == told().settings | sent
    assert told(OTLP_ENDPOINT="http://a:4317", OTLP_SERVICE_NAME="loom").settings == (
        told().settings | sent | {"otlp_service_name": ["loom"]})


@pytest.mark.parametrize("value", ["eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "exl2"])
def test_a_quantisation_that_there_is_not_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="--quantize is refused: "):
        told("--quantize", value)


@pytest.mark.parametrize("value", ["awq", "compressed-tensors", "gptq", "marlin", "fp8"])
def test_a_quantisation_that_the_checkpoint_tells_need_not_be_named(value: str) -> None:
    assert told("--quantize", value).settings == told().settings


@pytest.mark.parametrize("flag", TGI.flags, ids=[flag.name for flag in TGI.flags])
def test_whatever_has_no_effect_has_its_reason_and_what_is_set_exists(flag: Flag) -> None:
    for outcome in flag.outcomes:
        needs_reason = outcome.fate in {Fate.UNUSED, Fate.SILENT, Fate.REFUSED}
        assert bool(outcome.why) == needs_reason
        assert outcome.fate not in {Fate.SETTING, Fate.ADDRESS} or outcome.becomes in OURS


def test_a_flag_that_has_the_name_of_a_setting_of_ours_sets_it() -> None:
    """A new setting of weft with the name of such a flag would make its row wrong."""
    ours = {flag.name for flag in TGI.flags if flag.name.replace("-", "_") in OURS}
    sets = {flag.name for flag in TGI.flags for outcome in flag.outcomes
            if outcome.fate in {Fate.SETTING, Fate.ADDRESS} and outcome.becomes == flag.name.replace("-", "_")}
    assert ours - {"num-shard"} == sets
