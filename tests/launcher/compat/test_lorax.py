"""Tests of the flag table of LoRAX against the flags of its launcher."""

from collections import Counter

import pytest

from launcher.compat.arguments import OURS
from launcher.compat.flag_table import Fate, Flag
from launcher.compat.lorax import LORAX
from launcher.compat.translate import Translation, translate

# The flags of `lorax-launcher --help`, each with a valid value; a switch has none.
FLAGS: dict[str, str | None] = {
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
REFUSED: dict[str, str | None] = {"trust-remote-code": None, "ngrok": None, "weights-cache-override": "/a"}
VARIABLES = {
    "HF_API_TOKEN": "hf_one", "HF_HUB_ENABLE_HF_TRANSFER": "1", "LOG_LEVEL": "info", "LORAX_USE_GLOBAL_HF_TOKEN": "1",
    "PREDIBASE_GATEWAY_ENDPOINT": "https://a", "PREDIBASE_MODEL_BUCKET": "bucket", "PREDIBASE_MODEL_FOLDER": "folder",
    "S3_ENDPOINT_URL": "https://s3", "R2_ACCOUNT_ID": "account", "LORAX_PUNICA_TRITON_DISABLED": "1",
    "LORAX_PROFILER_DIR": "/a", "REQUEST_LOGGER_URL": "https://a",
}
REFUSED_VARIABLES = {"ROPE_SCALING": "linear", "ROPE_FACTOR": "2.0"}
# LoRAX's defaults: those in DEFAULTS are also weft's, those in GIVEN are set explicitly.
DEFAULTS = {
    "adapter_source": "hub", "validation_workers": 2, "max_best_of": 2, "max_stop_sequences": 4,
    "max_waiting_tokens": 20, "max_active_adapters": 1024, "adapter_cycle_time_s": 2, "adapter_memory_fraction": 0.1,
    "port": 3000, "json_output": False, "adapter_id": "", "preloaded_adapter_ids": (), "max_batch_total_tokens": None,
}
GIVEN = {
    "model_id": ["mistralai/Mistral-7B-Instruct-v0.1"], "max_concurrent_requests": ["1024"],
    "waiting_served_ratio": ["1.2"], "hostname": ["0.0.0.0"], "cors_allow_origin": ["*"], "adapters": ["true"],
    "compat": ["lorax"], "shutdown_timeout": ["90"],
}
BY_NAME = {flag.name: flag for flag in LORAX.flags}


def variable(name: str) -> str:
    return name.upper().replace("-", "_")


def told(*words: str, **environment: str) -> Translation:
    return translate(LORAX, words, environment, lambda: 1)


def line(name: str, value: str | None) -> tuple[str, ...]:
    return (f"--{name}",) if value is None else (f"--{name}", value)


def effects(found: Translation) -> tuple[object, ...]:
    return found.settings, found.variables, found.shows_environment, found.only_downloads


def test_the_table_has_what_their_launcher_has_and_nothing_twice() -> None:
    assert set(BY_NAME) == {*FLAGS, *REFUSED, *VARIABLES, *REFUSED_VARIABLES}
    assert max(Counter(flag.variable for flag in LORAX.flags).values()) == 1


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_taken_and_so_is_its_variable_which_means_the_same(name: str) -> None:
    value = FLAGS[name]
    by_flag, by_variable = told(*line(name, value)), told(**{variable(name): value or "true"})
    assert by_flag.rest == by_variable.rest == []
    assert effects(by_flag) == effects(by_variable)
    assert [note.replace(f"--{name}", variable(name), 1) for note in by_flag.notes] == by_variable.notes


@pytest.mark.parametrize("name", FLAGS)
def test_whether_it_has_an_effect_is_told_unless_none_is_needed(name: str) -> None:
    value = FLAGS[name]
    outcome = BY_NAME[name].outcome(value or "true")
    after = told(*line(name, value))
    assert bool(after.notes) == (outcome.fate is Fate.UNUSED)
    assert (effects(told()) == effects(after)) == (outcome.fate in {Fate.UNUSED, Fate.SILENT})


@pytest.mark.parametrize("name", [name for name in FLAGS if FLAGS[name] is None])
def test_a_switch_may_be_given_as_false(name: str) -> None:
    for found in (told(**{variable(name): "false"}), told(f"--{name}=false")):
        assert (effects(found), found.notes) == (effects(told()), [])


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_obeyed_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name} is refused: .{{20}}"):
        told(*line(name, REFUSED[name]))
    with pytest.raises(ValueError, match=f"{variable(name)} is refused: .{{20}}"):
        told(**{variable(name): REFUSED[name] or "true"})


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_without_a_flag_is_taken(name: str) -> None:
    assert BY_NAME[name].spellings == ()
    assert told(**{name: VARIABLES[name]}).rest == []


@pytest.mark.parametrize("name", REFUSED_VARIABLES)
def test_positions_are_not_scaled_by_a_variable(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is refused: .{{20}}"):
        told(**{name: REFUSED_VARIABLES[name]})


def test_what_counts_there_by_default_counts_here() -> None:
    assert {name: OURS[name].field.default for name in DEFAULTS} == DEFAULTS
    assert told().settings == GIVEN
    assert (told().variables, told().notes) == ({}, [])


def test_flags_of_ours_and_their_variables_count_before_what_is_given_by_default() -> None:
    ours = ("--compat", "none", "--no-adapters", "--shutdown-timeout=5", "--adapter-root", "/a")
    assert told(*ours).settings == {name: value for name, value in GIVEN.items()
                                    if name not in {"compat", "adapters", "shutdown_timeout"}}
    assert told(*ours).rest == [*ours]
    assert set(GIVEN) - set(told(WEFT_COMPAT="none", WEFT_MODEL_ID="org/name").settings) == {"compat", "model_id"}


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
    (("--chunked-prefill", "false"), {"prefill_policy": ["pause"]}),
    (("--chunked-prefill", "true"), {}),
    (("--prefix-caching", "false"), {"cache_scope": ["off"]}),
    (("--otlp-endpoint", "http://a:4317"),
     {"otlp_endpoint": ["http://a:4317"], "otlp_service_name": ["lorax.router"]}),
])
def test_what_flags_become(words: tuple[str, ...], settings: dict[str, list[str]]) -> None:
    assert told(*words).settings == GIVEN | settings


@pytest.mark.parametrize(("variables", "after"), [
    ({"PREDIBASE_MODEL_BUCKET": "a"}, {"PREDIBASE_MODEL_BUCKET": "a"}),
    ({"S3_ENDPOINT_URL": "https://s3"}, {"S3_ENDPOINT_URL": "https://s3"}),
    ({"R2_ACCOUNT_ID": "a"}, {"S3_ENDPOINT_URL": "https://a.r2.cloudflarestorage.com"}),
    ({"HF_API_TOKEN": "hf_one"}, {"HF_TOKEN": "hf_one"}),
    ({"HF_API_TOKEN": "hf_one", "HF_TOKEN": "hf_two"}, {}),
])
def test_what_variables_become(variables: dict[str, str], after: dict[str, str]) -> None:
    assert told(**variables).variables == after


def test_a_revision_is_named_once() -> None:
    with pytest.raises(ValueError, match=r"^--model-id names the revision v2 already, so --revision \(v1\) must not"):
        told("--model-id", "org/name@v2", "--revision", "v1")
    with pytest.raises(ValueError, match=r"^MODEL_ID names the revision v2 already, so REVISION \(v2\) must not"):
        told(MODEL_ID="org/name@v2", REVISION="v2")


def test_compiled_and_eager_exclude_each_other_unless_one_is_off() -> None:
    with pytest.raises(ValueError, match=r"^--eager and COMPILE contradict each other; give one$"):
        told("--eager", COMPILE="true")
    assert told("--eager", "--compile=false").settings == GIVEN | {"cuda_graphs": ["false"]}
    assert "--no-cuda-graphs" in told("--eager").words


def test_the_source_of_requests_counts_before_the_general_one_and_that_is_noted_where_they_differ() -> None:
    found = told("--adapter-source", "s3", "--default-adapter-source", "hub")
    assert found.settings["adapter_source"] == ["hub"]
    assert found.notes == ["--adapter-source has no effect: --default-adapter-source counts"]
    assert told("--adapter-source", "s3", "--default-adapter-source", "s3").notes == []


@pytest.mark.parametrize("flag", ["adapter-source", "default-adapter-source", "preloaded-adapter-source"])
def test_local_adapters_need_a_folder_that_they_are_below(flag: str) -> None:
    note = f"--{flag} local needs --adapter-root, the folder below which adapters of the source `local` are"
    assert told(f"--{flag}", "local").notes == [note]
    assert told(f"--{flag}", "local", "--adapter-root", "/adapters").notes == []
    assert told(f"--{flag}", "local", WEFT_ADAPTER_ROOT="/adapters").notes == []
    with pytest.raises(ValueError, match=f"--{flag} is refused: Predibase's registry is not served"):
        told(f"--{flag}", "pbase")
    with pytest.raises(ValueError, match=f"--{flag} must be one of hub, s3, local, pbase, got ftp"):
        told(f"--{flag}", "ftp")


def test_a_token_of_predibase_is_not_repeated() -> None:
    found = told("--predibase-api-token", "pb_one")
    assert "pb_one" not in " ".join([*found.words, *found.notes, *found.variables.values()])


def test_a_download_is_another_command() -> None:
    assert told("--model-id", "org/name@v2", "--download-only").command == ["download", "org/name", "--revision", "v2"]
    assert told("--model-id", "org/name", DOWNLOAD_ONLY="true").command == ["download", "org/name"]
    assert told("--download-only", WEFT_MODEL_ID="org/name", WEFT_REVISION="v3").command == [
        "download", "org/name", "--revision", "v3"]
    assert told("--model-id", "org/name").command[:3] == ["serve", "--model-id", "org/name"]


@pytest.mark.parametrize("value", [
    "eetq", "bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "exl2", "hqq-4bit", "hqq-3bit", "hqq-2bit"])
def test_a_quantisation_that_there_is_not_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="--quantize is refused: "):
        told("--quantize", value)


@pytest.mark.parametrize("value", ["awq", "gptq", "fp8", "fp8-kv"])
def test_a_quantisation_that_the_checkpoint_tells_need_not_be_named(value: str) -> None:
    assert told("--quantize", value).settings == GIVEN


@pytest.mark.parametrize("value", ["s3", "pbase"])
def test_a_model_comes_from_the_hub_or_from_a_folder(value: str) -> None:
    assert told("--source", "local").settings == GIVEN
    with pytest.raises(ValueError, match="--source is refused: models come from the Hub or from a folder"):
        told("--source", value)


@pytest.mark.parametrize("flag", LORAX.flags, ids=[flag.name for flag in LORAX.flags])
def test_whatever_has_no_effect_has_its_reason_and_what_is_set_exists(flag: Flag) -> None:
    for outcome in flag.outcomes:
        assert bool(outcome.why) == (outcome.fate in {Fate.UNUSED, Fate.SILENT, Fate.REFUSED})
        assert outcome.fate not in {Fate.SETTING, Fate.ADDRESS, Fate.REVISED} or outcome.becomes in OURS
        assert not outcome.needs or outcome.needs in OURS
    assert {flag.over, flag.against} <= {"", *BY_NAME}


def test_a_flag_that_has_the_name_of_a_setting_of_ours_sets_it() -> None:
    """A new setting of weft with the name of such a flag would make its row wrong."""
    ours = {flag.name for flag in LORAX.flags if flag.name.replace("-", "_") in OURS}
    sets = {flag.name for flag in LORAX.flags for outcome in flag.outcomes
            if outcome.fate is not Fate.VARIABLE and outcome.becomes == flag.name.replace("-", "_")}
    assert ours - {"num-shard"} == sets


def test_what_always_holds_is_a_setting_that_their_flags_leave_open() -> None:
    set_by_theirs = {outcome.becomes for flag in LORAX.flags for outcome in flag.outcomes}
    assert {item.setting for item in LORAX.always} <= set(OURS) - set_by_theirs
