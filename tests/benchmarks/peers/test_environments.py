"""Tests of the environments of other servers; nothing is installed."""

from pathlib import Path

import pytest

from benchmarks.harness.processes import ProcessStartError
from benchmarks.peers import environments
from benchmarks.peers.environments import (
    INSTALLED_FILE,
    LLAMA_CPP,
    OPENVINO,
    TRANSFORMERS,
    VLLM,
    copy_variables_without_pythonpath,
    install_environment,
    patch_amx_tile_config,
    run_step,
)


def test_complete_environment_is_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / VLLM.name
    folder.mkdir(parents=True)
    (folder / INSTALLED_FILE).write_text(VLLM.install_stamp)
    assert install_environment(VLLM, tmp_path) == folder


def test_environment_of_other_versions_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, steps = tmp_path / "environments" / TRANSFORMERS.name, list[list[str]]()
    folder.mkdir(parents=True)
    (folder / INSTALLED_FILE).write_text("transformers==4.0.0")
    monkeypatch.setattr(environments, "run_step", lambda command: steps.append(list(map(str, command))))
    monkeypatch.setattr(environments, "find_torch_options", lambda _: [])
    install_environment(TRANSFORMERS, tmp_path)
    assert [words[2] for words in steps] == ["venv", "pip"]
    assert steps[1][-len(TRANSFORMERS.requirements):] == list(TRANSFORMERS.requirements)
    assert (folder / INSTALLED_FILE).read_text() == TRANSFORMERS.install_stamp


@pytest.mark.parametrize("environment", [LLAMA_CPP, OPENVINO, TRANSFORMERS, VLLM])
def test_versions_are_pinned(environment: environments.PeerEnvironment) -> None:
    assert all("==" in requirement for requirement in environment.requirements)


def test_failed_step_reports_the_end_of_its_output() -> None:
    with pytest.raises(ProcessStartError, match=r"sh -c .* failed: no compiler"):
        run_step(["sh", "-c", "echo no compiler; exit 3"])


def test_configuration_of_tiles_is_kept_from_the_optimizer(tmp_path: Path) -> None:
    source = tmp_path / "mmq.cpp"
    source.write_text("{\n    _tile_loadconfig(&tc);\n}\n")
    patch_amx_tile_config(source)
    assert source.read_text().splitlines()[1:3] == ['    __asm__ volatile("" : : "r"(&tc) : "memory");',
                                                    "    _tile_loadconfig(&tc);"]
    source.write_text("{\n}\n")
    with pytest.raises(ProcessStartError, match=r"mmq\.cpp has no _tile_loadconfig"):
        patch_amx_tile_config(source)


def test_other_programs_do_not_find_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/checkout")
    assert "PYTHONPATH" not in copy_variables_without_pythonpath()
