"""Finding the compiled kernels and choosing an instruction set."""

from functools import cache
from pathlib import Path

import pytest

from shard.config import CPU_ISA_CHOICES
from shard.native import compiler, library
from shard.native.compiler import CompilationFailed, compile_library, find_compiler, library_file_name
from shard.native.library import (
    INSTRUCTION_SETS,
    ISA_VARIABLE,
    choose_instruction_set,
    describe_loaded_library,
    get_cache_folder,
    load_functions,
    load_library,
    load_library_or_reason,
    log_use_of_kernels,
)

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def test_every_instruction_set_is_a_choice() -> None:
    assert ("auto", *INSTRUCTION_SETS) == CPU_ISA_CHOICES


@pytest.mark.parametrize(("best", "wanted", "chosen"), [
    ("amx", "", "amx"), ("avx512_bf16", "", "avx512_bf16"), ("avx512_vnni", "", "avx512_vnni"), ("avx2", "", "avx2"),
    ("avx2_vnni", "", "avx2_vnni"), ("none", "", "none"), ("avx512", "avx2", "avx2"), ("amx", "avx2_vnni", "avx2_vnni"),
    ("amx", "avx512_bf16", "avx512_bf16"), ("avx2", "avx512", "avx2"), ("avx512", "none", "none")])
def test_best_instruction_set_is_chosen_up_to_the_wanted_one(best: str, wanted: str, chosen: str) -> None:
    available = INSTRUCTION_SETS[:INSTRUCTION_SETS.index(best) + 1]
    assert choose_instruction_set(available, wanted) == chosen


def test_processor_with_avx512_may_lack_vnni_of_avx2() -> None:
    available = [name for name in INSTRUCTION_SETS if name != "avx2_vnni"]
    assert choose_instruction_set(available, "avx2_vnni") == "avx2"
    assert choose_instruction_set(available, "") == "amx"


def test_unknown_instruction_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"WEFT_CPU_ISA must be one of auto, none, avx2, .*, got 'sse'"):
        choose_instruction_set(("none", "avx2"), "sse")


@pytest.fixture
def empty_package_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package's own, as if its installation had compiled nothing."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setattr(library, "PACKAGE_FOLDER", folder)
    return folder


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources in place of the kernels', which take ten seconds to compile; test_compiler.py compiles those."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for name in compiler.SOURCE_NAMES:
        (folder / name).write_text(f"static int {Path(name).stem};\n")
    monkeypatch.setattr(compiler, "NATIVE_FOLDER", folder)


@needs_compiler
@pytest.mark.usefixtures("small_sources")
def test_library_is_compiled_once_into_the_cache(empty_package_folder: Path, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    load_functions(environment)
    [path] = (tmp_path / "weft" / "native").iterdir()
    assert path.name == library_file_name()
    assert not [*empty_package_folder.iterdir()]
    monkeypatch.setattr(compiler, "run_compiler", None)
    assert load_functions(environment)._name == str(path)


@needs_compiler
@pytest.mark.usefixtures("small_sources")
def test_library_of_an_installation_needs_no_compiler_and_no_home(empty_package_folder: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    installed = compile_library(empty_package_folder)
    (empty_package_folder / "kernels-x86_64-0123456789abcdef.so").write_bytes(b"")  # of another source
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    monkeypatch.setattr(library, "get_cache_folder", None)
    assert load_functions({})._name == str(installed)


@needs_compiler
@pytest.mark.usefixtures("small_sources")
def test_library_made_for_another_system_is_compiled_here(empty_package_folder: Path, tmp_path: Path) -> None:
    (empty_package_folder / library_file_name()).write_bytes(b"no library")
    assert load_functions({"XDG_CACHE_HOME": str(tmp_path)})._name.startswith(str(tmp_path / "weft"))


@needs_compiler
@pytest.mark.usefixtures("empty_package_folder")
def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "weft").write_text("")
    with pytest.raises(CompilationFailed, match=r"cannot write .*/weft/native/kernels-\w+-\w+\.so"):
        load_functions({"XDG_CACHE_HOME": str(tmp_path)})


def test_user_without_a_home_folder_is_told_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", fail)
    with pytest.raises(CompilationFailed, match="this user has no home folder; set XDG_CACHE_HOME to a folder"):
        get_cache_folder({})


def test_shard_without_kernels_says_why(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> Path:
        raise CompilationFailed("there is no C compiler")

    monkeypatch.setattr(library, "load_functions", fail)
    monkeypatch.delenv(ISA_VARIABLE, raising=False)  # with "none" it is no warning
    monkeypatch.setattr(library, "load_library_or_reason", cache(load_library_or_reason.__wrapped__))
    log_use_of_kernels()
    assert not caplog.text  # nothing has asked for kernels
    assert load_library() is None
    log_use_of_kernels()
    assert "no compiled kernels, so products and attention are slower: there is no C compiler" in caplog.text
    assert not describe_loaded_library()


@pytest.mark.usefixtures("empty_package_folder")
def test_file_that_is_no_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weft" / "native" / library_file_name()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(path) in str(load_library_or_reason.__wrapped__())


@pytest.mark.skipif(load_library() is None, reason="there are no compiled kernels here")
def test_instructions_in_use_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    log_use_of_kernels()
    assert "compiled kernels for a" in caplog.text
    assert describe_loaded_library().startswith(library_file_name())
