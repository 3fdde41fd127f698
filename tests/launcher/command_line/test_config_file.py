from pathlib import Path

import pytest

from launcher.command_line.config_file import find_config_path, load_config_file

FLAG_NAMES = {name: name for name in ("max-batch-size", "port", "cors-allow-origin", "adapters", "api-key", "revision")}
FLAG_NAMES["max-num-seqs"] = "max-batch-size"


@pytest.mark.parametrize(("arguments", "path"), [
    ((), None), (("--config", "a.yaml"), "a.yaml"), (("x", "--config=b.yaml", "--port", "1"), "b.yaml"),
    (("--config", "a", "--config=b"), "b"), (("--config",), None), (("--config=",), "")])
def test_path_is_found_in_a_command_line(arguments: tuple[str, ...], path: str | None) -> None:
    assert find_config_path(arguments) == path


def test_names_may_have_hyphens_or_underscores(tmp_path: Path) -> None:
    (path := tmp_path / "weft.yaml").write_text(
        "max_batch_size: 8  # a comment\nport: 4000\ncors-allow-origin: ['*', https://a.b]\nadapters: true\n")
    assert load_config_file(str(path), FLAG_NAMES) == {
        "max-batch-size": "8", "port": "4000", "cors-allow-origin": ["*", "https://a.b"], "adapters": "true"}


def test_values_stay_the_text_that_was_written(tmp_path: Path) -> None:
    (path := tmp_path / "weft.yaml").write_text("api-key: on\nrevision: 00123\nport: 2026-13-45\n")
    assert load_config_file(str(path), FLAG_NAMES) == {"api-key": "on", "revision": "00123", "port": "2026-13-45"}


@pytest.mark.parametrize(("text", "reason"), [
    ("max-btch-size: 8", r"weft.yaml \(--config\): there is no setting 'max-btch-size'; did you mean max-batch-size\?"),
    ("zzz: 8", "there is no setting 'zzz'$"), ("max-batch-size: 1\nmax_num_seqs: 2", "max-batch-size is set twice"),
    ("[" * 5000, "is not YAML"), ('"\\e[2Jx": 3', r"no setting '\\x1b"),
    ("- port", "must have a line `name: value` for each setting"),
    ("port: [", "is not YAML"), ("port:", "port needs a value$"),
    ("port: {a: 1}", "port needs a value, not further names"),
])
def test_faults_name_the_file_and_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    (path := tmp_path / "weft.yaml").write_text(text)
    with pytest.raises(ValueError, match=reason):
        load_config_file(str(path), FLAG_NAMES)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nothing \(--config\): No such file"):
        load_config_file(str(tmp_path / "nothing"), FLAG_NAMES)


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    (path := tmp_path / "weft.yaml").write_text("# nothing yet\n")
    assert load_config_file(str(path), FLAG_NAMES) == {}
