"""Compiling the kernels."""

import sys
from pathlib import Path

import pytest

from shard.native import compiler
from shard.native.compiler import CompilationFailed, compile_library, find_compiler, library_file_name, run_compiler


def test_named_compiler_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "which", lambda name: f"/bin/{name}")
    assert find_compiler() is not None
    monkeypatch.setenv("CC", "tcc")
    assert find_compiler() == ("/bin/tcc", "-march=x86-64", "-mtune=generic")
    monkeypatch.delenv("CC")
    assert find_compiler() == ("/bin/cc", "-march=x86-64", "-mtune=generic")


def test_package_ziglang_is_the_last_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "which", lambda _: None)
    monkeypatch.setattr(compiler, "find_spec", lambda _: object())
    assert find_compiler() == (
        sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17", "-mcpu=baseline")


def test_machine_without_a_compiler_is_told_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    with pytest.raises(CompilationFailed, match="there is no C compiler; install gcc or clang, or the package ziglang"):
        compile_library(tmp_path)


def test_errors_of_the_compiler_are_shown(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('loom is no flag')")
    with pytest.raises(CompilationFailed, match="failed: loom is no flag"):
        run_compiler(command, tmp_path / "x.so")


def test_compiler_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompilationFailed, match=f"cannot run {tmp_path}: "):
        run_compiler((str(tmp_path),), tmp_path / "x.so")


def test_output_of_a_compiler_may_have_any_encoding(tmp_path: Path) -> None:
    command = (sys.executable, "-c", r"import sys; sys.stderr.buffer.write(b'\xff'); sys.exit(1)")
    with pytest.raises(CompilationFailed, match="failed: \N{REPLACEMENT CHARACTER}"):
        run_compiler(command, tmp_path / "x.so")


def test_changed_source_has_another_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library_file_name()
    for path in compiler.NATIVE_FOLDER.glob("*.[ch]"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(compiler, "NATIVE_FOLDER", tmp_path)
    assert library_file_name() == before
    header = tmp_path / "phases.h"
    header.write_text(header.read_text() + "\n")
    assert library_file_name() != before


def test_assembler_that_does_not_know_amx_is_given_no_such_code(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_text(' '.join(sys.argv))"
    refusal = "; '-DHAS_AMX=0' in sys.argv or sys.exit('no such instruction: ldtilecfg')"
    monkeypatch.setattr(compiler, "find_compiler", lambda: (sys.executable, "-c", program + refusal))
    assert "-DHAS_AMX=0" in compile_library(tmp_path).read_text()


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
def test_sources_compile_where_instructions_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMPILE_FLAGS", (*compiler.COMPILE_FLAGS, "-O0", "-Wall", "-Wextra", "-Werror",
                                                    "-DHAS_AMX=0", "-DHAS_BFLOAT16=0"))
    assert compile_library(tmp_path).is_file()


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("optimization", ["-O0", pytest.param("-O1", marks=pytest.mark.long)])  # -O1 finds some more
def test_sources_compile_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimization: str) -> None:
    monkeypatch.setattr(compiler, "COMPILE_FLAGS", (*compiler.COMPILE_FLAGS, optimization, "-Wall", "-Wextra",
                                                    "-Werror"))
    assert compile_library(tmp_path).is_file()
