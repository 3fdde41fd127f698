"""Tests of the flag table of LoRAX against the flags of its launcher."""

from collections import Counter

import pytest

from launcher.compat.flag_values import SETTINGS_BY_NAME
from launcher.compat.foreign_flag_table import FlagAction, ForeignFlag
from launcher.compat.lorax import LORAX_FLAG_TABLE
from launcher.compat.translate import TranslatedSettings, translate

# The flags of `lorax-launcher --help`, each with a valid value; a switch has none.
FLAG_EXAMPLES: dict[str, str | None] = {
    "model-id": "org/other", "revision": "refs/pr/1", "adapter-id": "org/adapter", "source": "hub",
    "default-adapter-source": "s3", "adapter-source": "s3", "validation-workers": "4", "sharded": "false",
    "num-shard": "2", "quantize": "gptq", "compile": None, "eager": None, "compile-max-batch-size": "64",
    "compile-max-rank": "32", "compile-batch-size": "16", "speculative-tokens": "2", "speculation-max-batch-size": "8",
    "preloaded-adapter-ids": "org/adapter", "preloaded-adapter-source": "s3", "predibase-api-token": "pb_one",
    "dtype": "bfloat16", "max-concurrent-requests": "5", "max-best-of": "3", "max-stop-sequences": "5",
    "max-input-length": "100", "max-total-tokens": "200", "waiting-served-ratio": "0.5",
    "max-batch-prefill-tokens": "512", "max-batch-total-tokens": "6400", "max-waiting-tokens": "10",
    "eager-prefill": "true", "chunked-prefill": "false", "prefix-caching": "false", "merge-adapter-weights": None,
    "max-active-adapters": "7", "adapter-cycle-time-s": "3", "adapter-memory-fraction": "0.2",
    "hostname": "127.0.0.1", "port": "8080", "shard-uds-path": "/tmp/a", "master-addr": "localhost",
    "master-port": "29500", "huggingface-hub-cache": "/cache", "disable-custom-kernels": None, "disable-sgmv": None,
    "cuda-memory-fraction": "0.8", "memory-wiggle-room": "0.8", "json-output": None, "otlp-endpoint": "http://a:4317",
    "cors-allow-origin": "https://a.org", "cors-allow-header": "content-type", "cors-allow-method": "GET",
    "cors-allow-credentials": "true", "cors-expose-header": "x-model-id", "watermark-gamma": "0.5",
    "watermark-delta": "2.0", "ngrok-authtoken": "a", "ngrok-edge": "a", "env": None, "download-only": None,
    "tokenizer-config-path": "a.json", "backend": "flashinfer", "embedding-dim": "256",
}
# Flags that weft does not support and rejects.
REJECTED_FLAGS: dict[str, str | None] = {"trust-remote-code": None, "ngrok": None, "weights-cache-override": "/a"}
VARIABLE_EXAMPLES = {
    "HF_API_TOKEN": "hf_one", "HF_HUB_ENABLE_HF_TRANSFER": "1", "LOG_LEVEL": "info", "LORAX_USE_GLOBAL_HF_TOKEN": "1",
    "PREDIBASE_GATEWAY_ENDPOINT": "https://a", "PREDIBASE_MODEL_BUCKET": "bucket", "PREDIBASE_MODEL_FOLDER": "folder",
    "S3_ENDPOINT_URL": "https://s3", "R2_ACCOUNT_ID": "account", "LORAX_PUNICA_TRITON_DISABLED": "1",
    "LORAX_PROFILER_DIR": "/a", "REQUEST_LOGGER_URL": "https://a",
}
REJECTED_VARIABLES = {"ROPE_SCALING": "linear", "ROPE_FACTOR": "2.0"}
# LoRAX's defaults: those in SHARED_DEFAULTS are also weft's, those in EXPLICIT_SETTINGS are set explicitly.
SHARED_DEFAULTS = {
    "adapter_source": "hub", "validation_workers": 2, "max_best_of": 2, "max_stop_sequences": 4,
    "max_waiting_tokens": 20, "max_active_adapters": 1024, "adapter_cycle_time_s": 2, "adapter_memory_fraction": 0.1,
    "port": 3000, "json_output": False, "adapter_id": "", "preloaded_adapter_ids": (), "max_batch_total_tokens": None,
}
EXPLICIT_SETTINGS = {
    "model_id": ["mistralai/Mistral-7B-Instruct-v0.1"], "max_concurrent_requests": ["1024"],
    "hostname": ["0.0.0.0"], "cors_allow_origin": ["*"], "adapters": ["true"],
    "compat": ["lorax"], "shutdown_timeout": ["90"],
}
FLAGS_BY_NAME = {flag.name: flag for flag in LORAX_FLAG_TABLE.flags}


def get_variable_name(name: str) -> str:
    return name.upper().replace("-", "_")


def translate_arguments(*arguments: str, **environment: str) -> TranslatedSettings:
    return translate(LORAX_FLAG_TABLE, arguments, environment, lambda: 1)


def make_arguments(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def get_effects(translation: TranslatedSettings) -> tuple[object, ...]:
    return (translation.settings, translation.environment_variables, translation.shows_environment,
            translation.is_download_only)


def test_table_has_each_flag_of_the_launcher_once() -> None:
    assert set(FLAGS_BY_NAME) == {*FLAG_EXAMPLES, *REJECTED_FLAGS, *VARIABLE_EXAMPLES, *REJECTED_VARIABLES}
    assert max(Counter(flag.environment_variable for flag in LORAX_FLAG_TABLE.flags).values()) == 1


@pytest.mark.parametrize("name", FLAG_EXAMPLES)
def test_flag_and_its_variable_have_the_same_effect(name: str) -> None:
    value = FLAG_EXAMPLES[name]
    by_flag, by_variable = translate_arguments(*make_arguments(name, value)), translate_arguments(
        **{get_variable_name(name): value or "true"})
    assert by_flag.remaining_arguments == by_variable.remaining_arguments == []
    assert get_effects(by_flag) == get_effects(by_variable)
    assert [note.replace(f"--{name}", get_variable_name(name), 1) for note in by_flag.notes] == by_variable.notes


@pytest.mark.parametrize("name", FLAG_EXAMPLES)
def test_flags_without_effect_are_noted_unless_not_needed(name: str) -> None:
    value = FLAG_EXAMPLES[name]
    outcome = FLAGS_BY_NAME[name].find_effect(value or "true")
    translation = translate_arguments(*make_arguments(name, value))
    assert bool(translation.notes) == (outcome.action is FlagAction.IGNORED)
    assert (get_effects(translate_arguments())
            == get_effects(translation)) == (outcome.action in {FlagAction.IGNORED, FlagAction.UNNEEDED})


@pytest.mark.parametrize("name", [name for name in FLAG_EXAMPLES if FLAG_EXAMPLES[name] is None])
def test_switch_may_be_given_as_false(name: str) -> None:
    for translation in (translate_arguments(**{get_variable_name(name): "false"}),
                        translate_arguments(f"--{name}=false")):
        assert (get_effects(translation), translation.notes) == (get_effects(translate_arguments()), [])


@pytest.mark.parametrize("name", REJECTED_FLAGS)
def test_unsupported_flags_are_rejected_with_a_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name} is refused: .{{20}}"):
        translate_arguments(*make_arguments(name, REJECTED_FLAGS[name]))
    with pytest.raises(ValueError, match=f"{get_variable_name(name)} is refused: .{{20}}"):
        translate_arguments(**{get_variable_name(name): REJECTED_FLAGS[name] or "true"})


@pytest.mark.parametrize("name", VARIABLE_EXAMPLES)
def test_variable_without_a_flag_is_accepted(name: str) -> None:
    assert FLAGS_BY_NAME[name].spellings == ()
    assert translate_arguments(**{name: VARIABLE_EXAMPLES[name]}).remaining_arguments == []


@pytest.mark.parametrize("name", REJECTED_VARIABLES)
def test_rope_scaling_variables_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is refused: .{{20}}"):
        translate_arguments(**{name: REJECTED_VARIABLES[name]})


def test_lorax_defaults_apply() -> None:
    assert {name: SETTINGS_BY_NAME[name].field.default for name in SHARED_DEFAULTS} == SHARED_DEFAULTS
    assert translate_arguments().settings == EXPLICIT_SETTINGS
    assert (translate_arguments().environment_variables, translate_arguments().notes) == ({}, [])


def test_weft_flags_and_variables_precede_lorax_defaults() -> None:
    arguments = ("--compat", "none", "--no-adapters", "--shutdown-timeout=5", "--adapter-root", "/a")
    assert translate_arguments(*arguments).settings == {name: value for name, value in EXPLICIT_SETTINGS.items()
                                                        if name not in {"compat", "adapters", "shutdown_timeout"}}
    assert translate_arguments(*arguments).remaining_arguments == [*arguments]
    assert set(EXPLICIT_SETTINGS) - set(translate_arguments(WEFT_COMPAT="none", WEFT_MODEL_ID="org/name").settings) == {
        "compat", "model_id"}


@pytest.mark.parametrize(("words", "settings"), [
    (("--model-id", "org/name@v2"), {"model_id": ["org/name"], "revision": ["v2"]}),
    (("--model-id", "name@refs/pr/1"), {"model_id": ["name"], "revision": ["refs/pr/1"]}),
    (("--model-id", "/models/name@v2"), {"model_id": ["/models/name@v2"]}),
    (("--model-id", "org/name", "--revision", "v2"), {"model_id": ["org/name"], "revision": ["v2"]}),
    (("-p", "80"), {"port": ["80"]}),
    (("--max-input-length", "7"), {"max_input_tokens": ["7"]}),
    (("--preloaded-adapter-ids", "a", "--preloaded-adapter-ids", "b"), {"preloaded_adapter_ids": ["a", "b"]}),
    (("--adapter-memory-fraction", "0"), {}),
    (("--quantize", "int8"), {"quantize": ["int8"]}),
    (("--quantize", "int4"), {"quantize": ["int4"]}),
    (("--chunked-prefill", "false"), {"prefill_policy": ["pause"]}),
    (("--chunked-prefill", "true"), {}),
    (("--prefix-caching", "false"), {"cache_scope": ["off"]}),
    (("--otlp-endpoint", "http://a:4317"),
     {"otlp_endpoint": ["http://a:4317"], "otlp_service_name": ["lorax.router"]}),
])
def test_flags_become_settings(words: tuple[str, ...], settings: dict[str, list[str]]) -> None:
    assert translate_arguments(*words).settings == EXPLICIT_SETTINGS | settings


@pytest.mark.parametrize(("variables", "expected"), [
    ({"PREDIBASE_MODEL_BUCKET": "a"}, {"PREDIBASE_MODEL_BUCKET": "a"}),
    ({"S3_ENDPOINT_URL": "https://s3"}, {"S3_ENDPOINT_URL": "https://s3"}),
    ({"R2_ACCOUNT_ID": "a"}, {"S3_ENDPOINT_URL": "https://a.r2.cloudflarestorage.com"}),
    ({"HF_API_TOKEN": "hf_one"}, {"HF_TOKEN": "hf_one"}),
    ({"HF_API_TOKEN": "hf_one", "HF_TOKEN": "hf_two"}, {}),
])
def test_variables_become_environment_variables(variables: dict[str, str], expected: dict[str, str]) -> None:
    assert translate_arguments(**variables).environment_variables == expected


def test_revision_may_be_named_only_once() -> None:
    with pytest.raises(ValueError, match=r"^--model-id names the revision v2 already, so --revision \(v1\) must not"):
        translate_arguments("--model-id", "org/name@v2", "--revision", "v1")
    with pytest.raises(ValueError, match=r"^MODEL_ID names the revision v2 already, so REVISION \(v2\) must not"):
        translate_arguments(MODEL_ID="org/name@v2", REVISION="v2")


def test_compile_and_eager_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^--eager and COMPILE contradict each other; give one$"):
        translate_arguments("--eager", COMPILE="true")
    assert translate_arguments("--eager", "--compile=false").settings == EXPLICIT_SETTINGS | {"cuda_graphs": ["false"]}
    assert "--no-cuda-graphs" in translate_arguments("--eager").serve_arguments


def test_default_adapter_source_precedes_adapter_source() -> None:
    translation = translate_arguments("--adapter-source", "s3", "--default-adapter-source", "hub")
    assert translation.settings["adapter_source"] == ["hub"]
    assert translation.notes == ["--adapter-source has no effect: --default-adapter-source counts"]
    assert translate_arguments("--adapter-source", "s3", "--default-adapter-source", "s3").notes == []


@pytest.mark.parametrize("flag", ["adapter-source", "default-adapter-source", "preloaded-adapter-source"])
def test_local_adapters_need_an_adapter_root(flag: str) -> None:
    note = f"--{flag} local needs --adapter-root, the folder that contains the adapters of the source `local`"
    assert translate_arguments(f"--{flag}", "local").notes == [note]
    assert translate_arguments(f"--{flag}", "local", "--adapter-root", "/adapters").notes == []
    assert translate_arguments(f"--{flag}", "local", WEFT_ADAPTER_ROOT="/adapters").notes == []
    with pytest.raises(ValueError, match=f"--{flag} is refused: Predibase's registry is not served"):
        translate_arguments(f"--{flag}", "pbase")
    with pytest.raises(ValueError, match=f"--{flag} must be one of hub, s3, local, pbase, got ftp"):
        translate_arguments(f"--{flag}", "ftp")


def test_predibase_token_is_not_repeated() -> None:
    translation = translate_arguments("--predibase-api-token", "pb_one")
    assert "pb_one" not in " ".join([*translation.serve_arguments, *translation.notes,
                                     *translation.environment_variables.values()])


def test_download_only_becomes_the_download_command() -> None:
    assert translate_arguments("--model-id", "org/name@v2",
                               "--download-only").weft_arguments == ["download", "org/name", "--revision", "v2"]
    assert translate_arguments("--model-id", "org/name",
                               DOWNLOAD_ONLY="true").weft_arguments == ["download", "org/name"]
    assert translate_arguments("--download-only", WEFT_MODEL_ID="org/name", WEFT_REVISION="v3").weft_arguments == [
        "download", "org/name", "--revision", "v3"]
    assert translate_arguments("--model-id", "org/name").weft_arguments[:3] == ["serve", "--model-id", "org/name"]


@pytest.mark.parametrize("value", [
    "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "exl2", "hqq-4bit", "hqq-3bit", "hqq-2bit"])
def test_unsupported_quantizations_are_rejected(value: str) -> None:
    with pytest.raises(ValueError, match="--quantize is refused: "):
        translate_arguments("--quantize", value)


@pytest.mark.parametrize("value", ["awq", "gptq", "fp8", "fp8-kv"])
def test_quantizations_named_by_the_checkpoint_need_no_setting(value: str) -> None:
    assert translate_arguments("--quantize", value).settings == EXPLICIT_SETTINGS


@pytest.mark.parametrize("value", ["s3", "pbase"])
def test_model_source_must_be_hub_or_local(value: str) -> None:
    assert translate_arguments("--source", "local").settings == EXPLICIT_SETTINGS
    with pytest.raises(ValueError, match="--source is refused: models come from the Hub or from a folder"):
        translate_arguments("--source", value)


@pytest.mark.parametrize("flag", LORAX_FLAG_TABLE.flags, ids=[flag.name for flag in LORAX_FLAG_TABLE.flags])
def test_outcomes_have_reasons_and_set_existing_settings(flag: ForeignFlag) -> None:
    for outcome in flag.effects:
        assert bool(outcome.reason) == (outcome.action in {FlagAction.IGNORED, FlagAction.UNNEEDED, FlagAction.REFUSED})
        assert outcome.action not in {FlagAction.SETTING, FlagAction.ADDRESS,
                                      FlagAction.MODEL_AND_REVISION} or outcome.target_name in SETTINGS_BY_NAME
        assert not outcome.required_setting or outcome.required_setting in SETTINGS_BY_NAME
    assert {flag.overrides, flag.conflicts_with} <= {"", *FLAGS_BY_NAME}


def test_flag_named_like_a_weft_setting_sets_it() -> None:
    """A new setting of weft with the name of such a flag would make its row wrong."""
    shared_names = {flag.name for flag in LORAX_FLAG_TABLE.flags if flag.name.replace("-", "_") in SETTINGS_BY_NAME}
    sets = {flag.name for flag in LORAX_FLAG_TABLE.flags for outcome in flag.effects
            if outcome.action is not FlagAction.VARIABLE and outcome.target_name == flag.name.replace("-", "_")}
    assert shared_names - {"num-shard"} == sets


def test_fixed_settings_are_not_set_by_flags() -> None:
    set_by_theirs = {outcome.target_name for flag in LORAX_FLAG_TABLE.flags for outcome in flag.effects}
    assert {item.setting_name for item in LORAX_FLAG_TABLE.fixed_settings} <= set(SETTINGS_BY_NAME) - set_by_theirs
