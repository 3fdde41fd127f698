"""Tests of translating another server's command line and variables into weft's, with small flag tables."""

import pytest

from launcher.compat.foreign_flag_table import (
    FlagAction,
    FlagEffect,
    ForeignFlag,
    ForeignFlagTable,
    ImplicitDefault,
    environment_variable_effect,
    ignored_effect,
    make_setting_effect,
    make_switch_flag,
    refused_effect,
    unchanged_flag,
    unneeded_effect,
)
from launcher.compat.translate import TranslatedSettings, translate

FLAG_TABLE = ForeignFlagTable("loom-launcher", (
    unchanged_flag("model-id"), unchanged_flag("port", short_name="p"), unchanged_flag("api-key"),
    unchanged_flag("max-input-tokens"),
    unchanged_flag("cors-allow-origin", default="*", kind="list"),
    ForeignFlag("max-input-length", (make_setting_effect("max_input_tokens"),)),
    ForeignFlag("hostname", (FlagEffect(FlagAction.ADDRESS, "hostname"),), default="0.0.0.0"),
    ForeignFlag("grace", (make_setting_effect("shutdown_timeout"),), short_name="g", default="90"),
    unchanged_flag("otlp-endpoint"),
    unchanged_flag("otlp-service-name", default="loom", default_requires="otlp-endpoint"),
    ForeignFlag("cache", (environment_variable_effect("HF_HUB_CACHE"),)),
    ForeignFlag("glue", (ignored_effect("there is no glue"),)),
    ForeignFlag("paint", (refused_effect("there is no paint", "red"), ignored_effect("it dries", "green"))),
    ForeignFlag("sharded", (FlagEffect(FlagAction.NUM_SHARDS, matching_values=("true", "false")),)),
    ForeignFlag("num-shard", (FlagEffect(FlagAction.NUM_SHARDS),)),
    make_switch_flag("json-output", make_setting_effect("json_output")),
    make_switch_flag("nails", refused_effect("there are no nails")),
    ForeignFlag("env", (FlagEffect(FlagAction.SHOW_ENVIRONMENT),), "switch", "e"),
    ForeignFlag("SHADE", (make_setting_effect("log_level"),), is_only_variable=True),))
# Kinds of flags that the table above lacks.
EXTENDED_FLAG_TABLE = ForeignFlagTable("carded-launcher", (
    ForeignFlag("model-id", (FlagEffect(FlagAction.MODEL_AND_REVISION, "model_id"),), default="org/default"),
    unchanged_flag("revision"),
    ForeignFlag("grace", (make_setting_effect("shutdown_timeout"),), default="90"),
    ForeignFlag("fibres", (FlagEffect(FlagAction.PRELOADED_ADAPTERS, "preloaded_adapter_ids"),)),
    ForeignFlag("fibre-source", (make_setting_effect("adapter_source", "hub"),
                                 make_setting_effect("adapter_source", "local", required_setting="adapter_root"))),
    ForeignFlag("own-source", (make_setting_effect("adapter_source"),), overrides="fibre-source"),
    ForeignFlag("SPINDLE", (environment_variable_effect("DISTAFF", value_template="https://{}.org"),),
                is_only_variable=True),
    ForeignFlag("DISTAFF", (environment_variable_effect("DISTAFF"),), is_only_variable=True),
    make_switch_flag("wet", ignored_effect("there is no water")),
    make_switch_flag("dry", unneeded_effect("it is dry"), conflicts_with="wet"),
    make_switch_flag("download-only", FlagEffect(FlagAction.DOWNLOAD_ONLY)),),
                                (ImplicitDefault("compat", "tgi"),
                                 ImplicitDefault("otlp_service_name", "cards", required_flag="otlp-endpoint")))
MODEL_ARGUMENTS = ("--model-id", "org/name")
DEFAULT_ARGUMENTS = "--cors-allow-origin * --hostname 0.0.0.0 --shutdown-timeout 90"


def translate_with_table(*arguments: str, devices: int = 0, **environment: str) -> TranslatedSettings:
    return translate(FLAG_TABLE, arguments, environment, lambda: devices)


def translate_to_line(*arguments: str, **environment: str) -> str:
    """Return the translated command line without the model."""
    line = " ".join(translate_with_table(*MODEL_ARGUMENTS, *arguments, **environment).serve_arguments)
    assert line.startswith("--model-id org/name ")
    return line.removeprefix("--model-id org/name ")


def test_foreign_defaults_are_made_explicit() -> None:
    assert translate_to_line() == DEFAULT_ARGUMENTS


@pytest.mark.parametrize("arguments",
                         [("--port", "80"), ("--port=80",), ("-p", "80"), ("-p80",), ("-p", "79", "-p", "80")])
def test_flags_can_be_written_in_all_ways(arguments: tuple[str, ...]) -> None:
    assert translate_to_line(*arguments) == f"--port 80 {DEFAULT_ARGUMENTS}"


def test_flag_precedes_its_variable() -> None:
    assert translate_to_line("-p", "80", PORT="81") == translate_to_line("-p", "80")


@pytest.mark.parametrize(("arguments", "environment", "expected"), [
    (("--otlp-endpoint", "a"), {}, f"{DEFAULT_ARGUMENTS} --otlp-endpoint a --otlp-service-name loom"),
    ((), {"OTLP_ENDPOINT": "a"}, f"{DEFAULT_ARGUMENTS} --otlp-endpoint a --otlp-service-name loom"),
    ((), {"WEFT_OTLP_ENDPOINT": "a"}, f"{DEFAULT_ARGUMENTS} --otlp-service-name loom"),
    ((), {"OTLP_SERVICE_NAME": "b"}, f"{DEFAULT_ARGUMENTS} --otlp-service-name b"),
])
def test_default_may_apply_only_beside_another_flag(
        arguments: tuple[str, ...], environment: dict[str, str], expected: str) -> None:
    assert translate_to_line(*arguments, **environment) == expected


def test_empty_variable_counts_as_unset() -> None:
    assert translate_to_line(PORT="", JSON_OUTPUT="", NUM_SHARD="") == DEFAULT_ARGUMENTS


def test_weft_variable_precedes_foreign_variable_and_default() -> None:
    assert translate_to_line(MAX_INPUT_TOKENS="5", WEFT_MAX_INPUT_TOKENS="6", WEFT_HOSTNAME="::1") == (
        "--cors-allow-origin * --shutdown-timeout 90")


def test_flag_precedes_weft_variable() -> None:
    assert translate_to_line("--max-input-tokens", "5",
                             WEFT_MAX_INPUT_TOKENS="6") == f"--max-input-tokens 5 {DEFAULT_ARGUMENTS}"


def test_kubernetes_service_variable_is_ignored() -> None:
    assert translate_to_line(PORT="80", WEFT_PORT="tcp://10.0.0.1:3000") == f"--port 80 {DEFAULT_ARGUMENTS}"


def test_weft_flags_and_unknown_flags_are_passed_on() -> None:
    assert translate_to_line("--max-queue-ms", "5", "--prot") == f"{DEFAULT_ARGUMENTS} --max-queue-ms 5 --prot"


def test_list_may_be_repeated_flags_or_one_variable() -> None:
    expected = DEFAULT_ARGUMENTS.replace("*", "a --cors-allow-origin b")
    assert translate_to_line("--cors-allow-origin", "a", "--cors-allow-origin", "b") == expected
    assert translate_to_line(CORS_ALLOW_ORIGIN=" a, b") == expected


def test_api_key_becomes_a_variable_and_no_argument() -> None:
    translation = translate_with_table(*MODEL_ARGUMENTS, "--api-key", "sk-one")
    assert "sk-one" not in translation.serve_arguments
    assert translation.environment_variables == {"WEFT_API_KEY": "sk-one"}


def test_flag_for_other_libraries_becomes_a_variable() -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, "--cache", "/a").environment_variables == {"HF_HUB_CACHE": "/a"}


def test_library_variable_is_overridden_only_by_a_flag() -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, CACHE="/a").environment_variables == {"HF_HUB_CACHE": "/a"}
    assert translate_with_table(*MODEL_ARGUMENTS, CACHE="/a", HF_HUB_CACHE="/b").environment_variables == {}
    assert translate_with_table(*MODEL_ARGUMENTS, "--cache", "/a",
                                HF_HUB_CACHE="/b").environment_variables == {"HF_HUB_CACHE": "/a"}


def test_flag_that_is_not_needed_gives_no_note() -> None:
    translation = translate_with_table(*MODEL_ARGUMENTS, JSON_OUTPUT="false")
    assert (translation.notes, translation.unneeded_notes) == ([], ["JSON_OUTPUT is not needed: it is off by default"])


def test_note_names_the_flag_or_variable_that_was_used() -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, "--glue", "5").notes == ["--glue has no effect: there is no glue"]
    assert translate_with_table(*MODEL_ARGUMENTS, GLUE="5").notes == ["GLUE has no effect: there is no glue"]


def test_all_rejections_are_reported_together() -> None:
    with pytest.raises(ValueError, match="--paint is refused: there is no paint; and NAILS is refused: there are no"):
        translate_with_table(*MODEL_ARGUMENTS, "--paint", "red", NAILS="true")


def test_unknown_value_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--paint must be one of red, green, got blue"):
        translate_with_table(*MODEL_ARGUMENTS, "--paint", "blue")
    with pytest.raises(ValueError, match="JSON_OUTPUT must be one of true, 1, false, 0, got maybe"):
        translate_with_table(*MODEL_ARGUMENTS, JSON_OUTPUT="maybe")


def test_two_names_of_one_setting_are_an_error() -> None:
    with pytest.raises(ValueError, match="--max-input-tokens and MAX_INPUT_LENGTH are given, and mean the same"):
        translate_with_table(*MODEL_ARGUMENTS, "--max-input-tokens", "5", MAX_INPUT_LENGTH="5")


def test_flag_without_its_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="--port/-p: expected one argument"):
        translate_with_table(*MODEL_ARGUMENTS, "--port")


def test_model_must_be_named() -> None:
    with pytest.raises(ValueError, match="a model must be named: --model-id org/name, or MODEL_ID"):
        translate_with_table("--port", "80")
    assert translate_with_table(MODEL_ID="org/name").serve_arguments[:2] == ["--model-id", "org/name"]
    assert "--model-id" not in translate_with_table(WEFT_MODEL_ID="org/name").serve_arguments


@pytest.mark.parametrize(("name", "address"), [("10.0.0.7", "10.0.0.7"), ("::1", "::1")])
def test_hostname_variable_with_an_address_is_used(name: str, address: str) -> None:
    translation = translate_with_table(*MODEL_ARGUMENTS, HOSTNAME=name)
    assert (translation.settings["hostname"], translation.notes) == ([address], [])


def test_hostname_variable_with_a_machine_name_is_ignored_and_noted() -> None:
    translation = translate_with_table(*MODEL_ARGUMENTS, HOSTNAME="4f2d9a1c")
    assert translation.settings["hostname"] == ["0.0.0.0"]
    assert translation.notes == [
        "HOSTNAME is no address (4f2d9a1c), so weft listens on 0.0.0.0; --hostname names another"]


def test_hostname_flag_may_be_a_name() -> None:
    translation = translate_with_table(*MODEL_ARGUMENTS, "--hostname", "localhost", HOSTNAME="4f2d9a1c")
    assert (translation.settings["hostname"], translation.notes) == (["localhost"], [])


@pytest.mark.parametrize(("arguments", "devices", "variables", "count"), [
    ((), 0, {}, None), ((), 1, {}, None), ((), 4, {}, ["4"]),
    (("--num-shard", "1"), 4, {}, ["1"]), (("--sharded", "true"), 4, {}, ["4"]), (("--sharded", "false"), 4, {}, ["1"]),
    ((), 4, {"NUM_SHARD": "2"}, ["2"]), ((), 4, {"NUM_SHARD": "2", "WEFT_NUM_SHARD": "3"}, None),
    (("--num-shard", "2"), 4, {"WEFT_NUM_SHARD": "3"}, ["2"]),
])
def test_shard_count_is_as_given_or_the_number_of_gpus(
        arguments: tuple[str, ...], devices: int, variables: dict[str, str], count: list[str] | None) -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, *arguments, devices=devices,
                                **variables).settings.get("num_shard") == count


def test_implicit_shard_count_is_noted() -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, devices=2).notes == [
        "2 shards, one for each GPU that can be seen; --num-shard says otherwise"]
    assert translate_with_table(*MODEL_ARGUMENTS, "--num-shard", "2", devices=2).notes == []


def test_help_explains_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        translate_with_table("--help")
    assert ended.value.code == 0
    assert "no effect: there is no glue" in " ".join(capsys.readouterr().out.split())


def test_version_is_that_of_weft(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        translate_with_table("-V")
    assert capsys.readouterr().out.startswith("weft 0.")


def test_environment_description_can_be_requested() -> None:
    assert translate_with_table(*MODEL_ARGUMENTS, "-e", "--port", "80").shows_environment
    assert not translate_with_table(*MODEL_ARGUMENTS).shows_environment


# -- the flags of EXTENDED_FLAG_TABLE


def translate_with_extended_table(*arguments: str, **environment: str) -> TranslatedSettings:
    return translate(EXTENDED_FLAG_TABLE, arguments, environment, lambda: 0)


def test_default_model_is_used_unless_a_variable_names_one() -> None:
    assert translate_with_extended_table().serve_arguments == ["--model-id", "org/default", "--shutdown-timeout", "90",
                                                               "--compat", "tgi"]
    assert "model_id" not in translate_with_extended_table(WEFT_MODEL_ID="org/name").settings


@pytest.mark.parametrize(("model", "settings"), [
    ("org/name", {"model_id": ["org/name"]}),
    ("org/name@v1", {"model_id": ["org/name"], "revision": ["v1"]}),
    ("name@a@b", {"model_id": ["name"], "revision": ["a@b"]}),
    ("/folder/name@v1", {"model_id": ["/folder/name@v1"]}),
    ("./name@v1", {"model_id": ["./name@v1"]}),
    ("org/name@", {"model_id": ["org/name@"]}),
])
def test_model_name_may_include_its_revision(model: str, settings: dict[str, list[str]]) -> None:
    translated_settings = translate_with_extended_table("--model-id", model).settings
    assert {name: translated_settings[name] for name in ("model_id", "revision")
            if name in translated_settings} == settings


def test_two_revisions_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"--model-id names the revision v1 already, so REVISION \(v2\) must not be"):
        translate_with_extended_table("--model-id", "org/name@v1", REVISION="v2")


@pytest.mark.parametrize(("arguments", "environment"), [
    (("--shutdown-timeout", "5"), {}), (("--shutdown-timeout=5",), {}),
    (("--shutdown-timeout", "5"), {"GRACE": "6"}), ((), {"WEFT_SHUTDOWN_TIMEOUT": "5"}),
])
def test_weft_flag_precedes_foreign_default_and_variable(
        arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    translation = translate_with_extended_table(*arguments, **environment)
    assert "shutdown_timeout" not in translation.settings
    assert translation.remaining_arguments == [*arguments]


def test_fixed_setting_gives_way_to_a_weft_flag() -> None:
    assert translate_with_extended_table().settings["compat"] == ["tgi"]
    assert "compat" not in translate_with_extended_table("--compat", "none").settings
    assert "compat" not in translate_with_extended_table(WEFT_COMPAT="none").settings


def test_fixed_setting_may_depend_on_another_flag() -> None:
    assert "otlp_service_name" not in translate_with_extended_table().settings
    assert translate_with_extended_table(OTLP_ENDPOINT="http://a:1").settings["otlp_service_name"] == ["cards"]
    assert "otlp_service_name" not in translate_with_extended_table(OTLP_ENDPOINT="http://a:1",
                                                                    OTLP_SERVICE_NAME="b").settings


def test_listed_adapters_are_preloaded() -> None:
    translation = translate_with_extended_table("--fibres", "org/one,two=org/two@v2")
    assert translation.settings["preloaded_adapter_ids"] == ["org/one", "two=org/two@v2"]
    assert (translation.settings["adapters"], translation.notes) == (["true"], [])
    assert " --adapters" not in " ".join(
        translate_with_extended_table("--adapters", FIBRES="org/one").serve_arguments[:-1])


def test_adapters_in_folders_need_an_adapter_root() -> None:
    translation = translate_with_extended_table(FIBRES="one=/adapters/one")
    assert translation.settings["preloaded_adapter_source"] == ["local"]
    assert translation.notes == [
        "FIBRES needs --adapter-root, the folder that contains the adapters of the source `local`"]
    assert translate_with_extended_table("--adapter-root", "/adapters", FIBRES="one=/adapters/one").notes == []


def test_invalid_adapter_list_is_reported_with_its_flag() -> None:
    with pytest.raises(ValueError, match=r"^FIBRES: adapters are listed as NAME, "):
        translate_with_extended_table(FIBRES="=")


def test_value_may_need_another_setting() -> None:
    assert translate_with_extended_table("--fibre-source", "hub").notes == []
    assert translate_with_extended_table("--fibre-source", "local").notes == [
        "--fibre-source local needs --adapter-root, the folder that contains the adapters of the source `local`"]


def test_flag_may_override_another() -> None:
    translation = translate_with_extended_table("--fibre-source", "local", OWN_SOURCE="s3")
    assert (translation.settings["adapter_source"], translation.notes) == (
        ["s3"], ["--fibre-source has no effect: OWN_SOURCE counts"])
    translation = translate_with_extended_table("--fibre-source", "hub", "--own-source", "hub")
    assert (translation.notes,
            translation.unneeded_notes) == ([], ["--fibre-source is not needed: --own-source counts"])


def test_known_variable_is_kept_or_built_from_another() -> None:
    assert translate_with_extended_table(DISTAFF="https://a").environment_variables == {"DISTAFF": "https://a"}
    assert translate_with_extended_table(SPINDLE="a").environment_variables == {"DISTAFF": "https://a.org"}
    assert translate_with_extended_table(SPINDLE="a",
                                         DISTAFF="https://b").environment_variables == {"DISTAFF": "https://b"}


def test_exclusive_switches_cannot_both_be_on() -> None:
    with pytest.raises(ValueError, match="--dry and WET contradict each other; give one"):
        translate_with_extended_table("--dry", WET="1")
    assert translate_with_extended_table("--dry=false", WET="1").notes == ["WET has no effect: there is no water"]


def test_download_needs_only_model_and_revision() -> None:
    assert translate_with_extended_table("--download-only", "--grace",
                                         "5").weft_arguments == ["download", "org/default"]
    assert translate_with_extended_table("--download-only", WEFT_MODEL_ID="org/a",
                                         WEFT_REVISION="v1").weft_arguments == ["download", "org/a", "--revision", "v1"]
    assert translate_with_extended_table("--download-only=false").weft_arguments[0] == "serve"
