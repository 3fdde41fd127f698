"""Tests of what `weft` does before its command line is imported."""

import signal
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, run

PROGRAM = "from launcher.entry_point import main; main()"
# A command line that waits while it is imported.
SLOW_IMPORT = ("import sys, time, types; loader = types.SimpleNamespace(create_module=lambda spec: None, "
               "exec_module=lambda module: (print('importing', flush=True), time.sleep(60))); "
               "import importlib.machinery as m; sys.meta_path.insert(0, types.SimpleNamespace(find_spec="
               "lambda name, *_: m.ModuleSpec(name, loader) if name == 'launcher.cli' else None)); ")


def test_entry_point_runs_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM, "version"]
    result = run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout[0].isdigit()


def test_interrupt_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    with Popen([sys.executable, "-P", "-c", SLOW_IMPORT + PROGRAM], cwd=tmp_path, stdin=DEVNULL, stdout=PIPE,
               stderr=PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (-signal.SIGINT, "")
