"""Tests of translating another server's command line and variables into weft's, with small flag tables."""

import pytest

from launcher.compat.flag_table import (
    Always,
    Fate,
    Flag,
    Outcome,
    Table,
    refused,
    same,
    setting,
    silent,
    switch,
    unused,
    variable,
)
from launcher.compat.translate import Translation, translate

TABLE = Table("loom-launcher", (
    same("model-id"), same("port", short="p"), same("api-key"), same("max-input-tokens"),
    same("cors-allow-origin", default="*", kind="list"),
    Flag("max-input-length", (setting("max_input_tokens"),)),
    Flag("hostname", (Outcome(Fate.ADDRESS, "hostname"),), default="0.0.0.0"),
    Flag("grace", (setting("shutdown_timeout"),), short="g", default="90"),
    same("otlp-endpoint"), same("otlp-service-name", default="loom", beside="otlp-endpoint"),
    Flag("cache", (variable("HF_HUB_CACHE"),)),
    Flag("glue", (unused("there is no glue"),)),
    Flag("paint", (refused("there is no paint", "red"), unused("it dries", "green"))),
    Flag("sharded", (Outcome(Fate.SHARDS, values=("true", "false")),)), Flag("num-shard", (Outcome(Fate.SHARDS),)),
    switch("json-output", setting("json_output")), switch("nails", refused("there are no nails")),
    Flag("env", (Outcome(Fate.SHOWN),), "switch", "e"),
    Flag("SHADE", (setting("log_level"),), only_variable=True),
))
# Kinds of flags that the table above lacks.
CARDED = Table("carded-launcher", (
    Flag("model-id", (Outcome(Fate.REVISED, "model_id"),), default="org/default"), same("revision"),
    Flag("grace", (setting("shutdown_timeout"),), default="90"),
    Flag("fibres", (Outcome(Fate.ADAPTERS, "preloaded_adapter_ids"),)),
    Flag("fibre-source", (setting("adapter_source", "hub"), setting("adapter_source", "local", needs="adapter_root"))),
    Flag("own-source", (setting("adapter_source"),), over="fibre-source"),
    Flag("SPINDLE", (variable("DISTAFF", gives="https://{}.org"),), only_variable=True),
    Flag("DISTAFF", (variable("DISTAFF"),), only_variable=True),
    switch("wet", unused("there is no water")), switch("dry", silent("it is dry"), against="wet"),
    switch("download-only", Outcome(Fate.DOWNLOADED)),
), (Always("compat", "tgi"), Always("otlp_service_name", "cards", beside="otlp-endpoint")))
MODEL = ("--model-id", "org/name")
DEFAULTS = "--cors-allow-origin * --hostname 0.0.0.0 --shutdown-timeout 90"


def told(*words: str, devices: int = 0, **environment: str) -> Translation:
    return translate(TABLE, words, environment, lambda: devices)


def words(*given: str, **environment: str) -> str:
    """Return the translated command line without the model."""
    line = " ".join(told(*MODEL, *given, **environment).words)
    assert line.startswith("--model-id org/name ")
    return line.removeprefix("--model-id org/name ")


def test_what_is_default_there_is_given_here() -> None:
    assert words() == DEFAULTS


@pytest.mark.parametrize("given", [("--port", "80"), ("--port=80",), ("-p", "80"), ("-p80",), ("-p", "79", "-p", "80")])
def test_flags_may_be_written_in_all_ways(given: tuple[str, ...]) -> None:
    assert words(*given) == f"--port 80 {DEFAULTS}"


def test_a_flag_counts_before_its_variable() -> None:
    assert words("-p", "80", PORT="81") == words("-p", "80")


@pytest.mark.parametrize(("given", "environment", "expected"), [
    (("--otlp-endpoint", "a"), {}, f"{DEFAULTS} --otlp-endpoint a --otlp-service-name loom"),
    ((), {"OTLP_ENDPOINT": "a"}, f"{DEFAULTS} --otlp-endpoint a --otlp-service-name loom"),
    ((), {"WEFT_OTLP_ENDPOINT": "a"}, f"{DEFAULTS} --otlp-service-name loom"),
    ((), {"OTLP_SERVICE_NAME": "b"}, f"{DEFAULTS} --otlp-service-name b"),
])
def test_a_default_may_count_only_beside_another_flag(
        given: tuple[str, ...], environment: dict[str, str], expected: str) -> None:
    assert words(*given, **environment) == expected


def test_an_empty_variable_is_none() -> None:
    assert words(PORT="", JSON_OUTPUT="", NUM_SHARD="") == DEFAULTS


def test_a_variable_of_ours_counts_before_theirs_and_before_their_default() -> None:
    assert words(MAX_INPUT_TOKENS="5", WEFT_MAX_INPUT_TOKENS="6", WEFT_HOSTNAME="::1") == (
        "--cors-allow-origin * --shutdown-timeout 90")


def test_a_flag_counts_before_a_variable_of_ours() -> None:
    assert words("--max-input-tokens", "5", WEFT_MAX_INPUT_TOKENS="6") == f"--max-input-tokens 5 {DEFAULTS}"


def test_the_variable_that_kubernetes_sets_for_a_service_is_not_ours() -> None:
    assert words(PORT="80", WEFT_PORT="tcp://10.0.0.1:3000") == f"--port 80 {DEFAULTS}"


def test_flags_of_ours_and_mistakes_are_left_to_weft() -> None:
    assert words("--max-queue-ms", "5", "--prot") == f"{DEFAULTS} --max-queue-ms 5 --prot"


def test_a_list_may_be_given_in_pieces_and_a_variable_holds_all_of_it() -> None:
    expected = DEFAULTS.replace("*", "a --cors-allow-origin b")
    assert words("--cors-allow-origin", "a", "--cors-allow-origin", "b") == expected
    assert words(CORS_ALLOW_ORIGIN=" a, b") == expected


def test_a_key_is_no_word_since_others_see_those() -> None:
    found = told(*MODEL, "--api-key", "sk-one")
    assert "sk-one" not in found.words
    assert found.variables == {"WEFT_API_KEY": "sk-one"}


def test_what_others_follow_is_a_variable() -> None:
    assert told(*MODEL, "--cache", "/a").variables == {"HF_HUB_CACHE": "/a"}


def test_a_variable_that_others_follow_is_not_overruled_by_another_but_by_a_flag() -> None:
    assert told(*MODEL, CACHE="/a").variables == {"HF_HUB_CACHE": "/a"}
    assert told(*MODEL, CACHE="/a", HF_HUB_CACHE="/b").variables == {}
    assert told(*MODEL, "--cache", "/a", HF_HUB_CACHE="/b").variables == {"HF_HUB_CACHE": "/a"}


def test_what_is_not_needed_is_no_note() -> None:
    found = told(*MODEL, JSON_OUTPUT="false")
    assert (found.notes, found.not_needed) == ([], ["JSON_OUTPUT is not needed: it is off by default"])


def test_what_has_no_effect_is_noted_by_the_name_that_was_used() -> None:
    assert told(*MODEL, "--glue", "5").notes == ["--glue has no effect: there is no glue"]
    assert told(*MODEL, GLUE="5").notes == ["GLUE has no effect: there is no glue"]


def test_all_that_is_refused_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="--paint is refused: there is no paint; and NAILS is refused: there are no"):
        told(*MODEL, "--paint", "red", NAILS="true")


def test_a_value_that_is_not_known_is_told_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="--paint must be one of red, green, got blue"):
        told(*MODEL, "--paint", "blue")
    with pytest.raises(ValueError, match="JSON_OUTPUT must be one of true, 1, false, 0, got maybe"):
        told(*MODEL, JSON_OUTPUT="maybe")


def test_two_names_of_one_setting_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="--max-input-tokens and MAX_INPUT_LENGTH are given, and mean the same"):
        told(*MODEL, "--max-input-tokens", "5", MAX_INPUT_LENGTH="5")


def test_a_flag_without_its_value_is_told() -> None:
    with pytest.raises(ValueError, match="--port/-p: expected one argument"):
        told(*MODEL, "--port")


def test_a_model_must_be_named() -> None:
    with pytest.raises(ValueError, match="a model must be named: --model-id org/name, or MODEL_ID"):
        told("--port", "80")
    assert told(MODEL_ID="org/name").words[:2] == ["--model-id", "org/name"]
    assert "--model-id" not in told(WEFT_MODEL_ID="org/name").words


@pytest.mark.parametrize(("name", "address"), [("10.0.0.7", "10.0.0.7"), ("::1", "::1")])
def test_an_address_in_the_variable_of_the_machine_s_name_counts(name: str, address: str) -> None:
    found = told(*MODEL, HOSTNAME=name)
    assert (found.settings["hostname"], found.notes) == ([address], [])


def test_the_name_of_the_machine_is_no_address_and_that_is_noted() -> None:
    found = told(*MODEL, HOSTNAME="4f2d9a1c")
    assert found.settings["hostname"] == ["0.0.0.0"]
    assert found.notes == [
        "HOSTNAME is no address (4f2d9a1c), so weft listens on 0.0.0.0; --hostname names another"]


def test_a_name_that_is_given_as_a_flag_is_meant() -> None:
    found = told(*MODEL, "--hostname", "localhost", HOSTNAME="4f2d9a1c")
    assert (found.settings["hostname"], found.notes) == (["localhost"], [])


@pytest.mark.parametrize(("given", "devices", "variables", "count"), [
    ((), 0, {}, None), ((), 1, {}, None), ((), 4, {}, ["4"]),
    (("--num-shard", "1"), 4, {}, ["1"]), (("--sharded", "true"), 4, {}, ["4"]), (("--sharded", "false"), 4, {}, ["1"]),
    ((), 4, {"NUM_SHARD": "2"}, ["2"]), ((), 4, {"NUM_SHARD": "2", "WEFT_NUM_SHARD": "3"}, None),
    (("--num-shard", "2"), 4, {"WEFT_NUM_SHARD": "3"}, ["2"]),
])
def test_there_are_as_many_shards_as_were_asked_for_or_as_there_are_gpus(
        given: tuple[str, ...], devices: int, variables: dict[str, str], count: list[str] | None) -> None:
    assert told(*MODEL, *given, devices=devices, **variables).settings.get("num_shard") == count


def test_shards_that_nobody_asked_for_are_noted() -> None:
    assert told(*MODEL, devices=2).notes == [
        "2 shards, one for each GPU that can be seen; --num-shard says otherwise"]
    assert told(*MODEL, "--num-shard", "2", devices=2).notes == []


def test_help_tells_what_becomes_of_each_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        told("--help")
    assert ended.value.code == 0
    assert "no effect: there is no glue" in " ".join(capsys.readouterr().out.split())


def test_the_version_is_that_of_weft(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        told("-V")
    assert capsys.readouterr().out.startswith("weft 0.")


def test_a_description_of_the_environment_can_be_asked_for() -> None:
    assert told(*MODEL, "-e", "--port", "80").shows_environment
    assert not told(*MODEL).shows_environment


# -- the flags of CARDED


def carded(*words: str, **environment: str) -> Translation:
    return translate(CARDED, words, environment, lambda: 0)


def test_a_model_may_be_default_and_ours_counts_before_it() -> None:
    assert carded().words == ["--model-id", "org/default", "--shutdown-timeout", "90", "--compat", "tgi"]
    assert "model_id" not in carded(WEFT_MODEL_ID="org/name").settings


@pytest.mark.parametrize(("model", "settings"), [
    ("org/name", {"model_id": ["org/name"]}),
    ("org/name@v1", {"model_id": ["org/name"], "revision": ["v1"]}),
    ("name@a@b", {"model_id": ["name"], "revision": ["a@b"]}),
    ("/folder/name@v1", {"model_id": ["/folder/name@v1"]}),
    ("./name@v1", {"model_id": ["./name@v1"]}),
    ("org/name@", {"model_id": ["org/name@"]}),
])
def test_a_name_at_the_hub_may_have_its_revision_behind_it(model: str, settings: dict[str, list[str]]) -> None:
    found = carded("--model-id", model).settings
    assert {name: found[name] for name in ("model_id", "revision") if name in found} == settings


def test_two_revisions_are_one_too_many() -> None:
    with pytest.raises(ValueError, match=r"--model-id names the revision v1 already, so REVISION \(v2\) must not be"):
        carded("--model-id", "org/name@v1", REVISION="v2")


@pytest.mark.parametrize(("given", "environment"), [
    (("--shutdown-timeout", "5"), {}), (("--shutdown-timeout=5",), {}),
    (("--shutdown-timeout", "5"), {"GRACE": "6"}), ((), {"WEFT_SHUTDOWN_TIMEOUT": "5"}),
])
def test_a_flag_of_ours_counts_before_their_default_and_their_variable(
        given: tuple[str, ...], environment: dict[str, str]) -> None:
    found = carded(*given, **environment)
    assert "shutdown_timeout" not in found.settings
    assert found.rest == [*given]


def test_what_always_holds_there_gives_way_to_ours() -> None:
    assert carded().settings["compat"] == ["tgi"]
    assert "compat" not in carded("--compat", "none").settings
    assert "compat" not in carded(WEFT_COMPAT="none").settings


def test_what_always_holds_may_be_for_another_flag() -> None:
    assert "otlp_service_name" not in carded().settings
    assert carded(OTLP_ENDPOINT="http://a:1").settings["otlp_service_name"] == ["cards"]
    assert "otlp_service_name" not in carded(OTLP_ENDPOINT="http://a:1", OTLP_SERVICE_NAME="b").settings


def test_adapters_that_are_listed_are_served() -> None:
    found = carded("--fibres", "org/one,two=org/two@v2")
    assert found.settings["preloaded_adapter_ids"] == ["org/one", "two=org/two@v2"]
    assert (found.settings["adapters"], found.notes) == (["true"], [])
    assert " --adapters" not in " ".join(carded("--adapters", FIBRES="org/one").words[:-1])


def test_adapters_in_folders_need_one_that_they_are_below() -> None:
    found = carded(FIBRES="one=/adapters/one")
    assert found.settings["preloaded_adapter_source"] == ["local"]
    assert found.notes == ["FIBRES needs --adapter-root, the folder below which adapters of the source `local` are"]
    assert carded("--adapter-root", "/adapters", FIBRES="one=/adapters/one").notes == []


def test_a_list_of_adapters_that_is_none_is_told_by_its_flag() -> None:
    with pytest.raises(ValueError, match=r"^FIBRES: adapters are listed as NAME, "):
        carded(FIBRES="=")


def test_a_value_may_need_another_setting() -> None:
    assert carded("--fibre-source", "hub").notes == []
    assert carded("--fibre-source", "local").notes == [
        "--fibre-source local needs --adapter-root, the folder below which adapters of the source `local` are"]


def test_a_flag_may_count_before_another() -> None:
    found = carded("--fibre-source", "local", OWN_SOURCE="s3")
    assert (found.settings["adapter_source"], found.notes) == (
        ["s3"], ["--fibre-source has no effect: OWN_SOURCE counts"])
    found = carded("--fibre-source", "hub", "--own-source", "hub")
    assert (found.notes, found.not_needed) == ([], ["--fibre-source is not needed: --own-source counts"])


def test_a_variable_that_we_follow_stays_and_another_may_be_a_part_of_it() -> None:
    assert carded(DISTAFF="https://a").variables == {"DISTAFF": "https://a"}
    assert carded(SPINDLE="a").variables == {"DISTAFF": "https://a.org"}
    assert carded(SPINDLE="a", DISTAFF="https://b").variables == {"DISTAFF": "https://b"}


def test_switches_that_exclude_each_other_cannot_both_be_on() -> None:
    with pytest.raises(ValueError, match="--dry and WET contradict each other; give one"):
        carded("--dry", WET="1")
    assert carded("--dry=false", WET="1").notes == ["WET has no effect: there is no water"]


def test_a_download_needs_the_model_and_its_revision_only() -> None:
    assert carded("--download-only", "--grace", "5").command == ["download", "org/default"]
    assert carded("--download-only", WEFT_MODEL_ID="org/a", WEFT_REVISION="v1").command == [
        "download", "org/a", "--revision", "v1"]
    assert carded("--download-only=false").command[0] == "serve"
