"""Constructs that no module of a server may contain: they run code from data, or vanish under `python -O`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
MODULES = [path for top in ("router", "shard", "launcher") for path in sorted((REPOSITORY_ROOT / top).rglob("*.py"))
           if path.parent.name != "pb"]
CODE_LOADING_MODULES = {"cloudpickle", "dill", "joblib", "pickle", "shelve"}
CODE_LOADING_CALLS = {"eval", "exec", "compile", "torch.load", "marshal.load", "marshal.loads", "os.system", "os.popen"}


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_type_narrowing(test: ast.expr) -> bool:
    """Return whether an asserted expression only tells the type checker what is known: `x is not None`, or isinstance.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_type_narrowing(operand)
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return False


def iter_unsafe_constructs(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=test) if not is_type_narrowing(test):
                yield f"{node.lineno}: assert {ast.unparse(test)}"
            case ast.Import(names=names):
                yield from (f"{node.lineno}: import {name.name}" for name in names
                            if name.name.partition(".")[0] in CODE_LOADING_MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in CODE_LOADING_MODULES:
                yield f"{node.lineno}: from {module} import"
            case ast.Call(func=func) if ast.unparse(func) in CODE_LOADING_CALLS:
                yield f"{node.lineno}: {ast.unparse(func)}()"
            case ast.keyword(arg="shell" | "trust_remote_code", value=ast.Constant(value=True) as value):
                yield f"{value.lineno}: {ast.unparse(node)}"


def test_no_module_loads_code_from_data_or_guards_by_assert() -> None:
    found = [f"{path.relative_to(REPOSITORY_ROOT)}:{construct}" for path in MODULES
             for construct in iter_unsafe_constructs(parse(path))]
    assert found == []


@pytest.mark.parametrize(("line", "is_unsafe"), [
    ("assert x is not None", False), ("assert not isinstance(x, int)", False), ("assert x", True),
    ("assert x is None", True), ("assert x is not None and y", True), ("import pickle", True),
    ("from pickle import loads", True), ("torch.load(file)", True), ("model.eval()", False), ("eval(text)", True),
    ("run(command, shell=True)", True), ("run(command, shell=False)", False),
    ("complete(shell=shell)", False), ("re.compile('a')", False)])
def test_unsafe_constructs_are_found(line: str, is_unsafe: bool) -> None:
    assert bool([*iter_unsafe_constructs(ast.parse(line))]) == is_unsafe


def test_optimized_python_still_checks_the_core() -> None:
    """Blocks given back twice would let two tenants write to one block."""
    program = ("from router.scheduler.block_pool import BlockPool\n"
               "pool = BlockPool(4, 16)\nblocks = pool.allocate(1)\npool.free(blocks)\npool.free(blocks)")
    done = subprocess.run([sys.executable, "-OPc", program], cwd=REPOSITORY_ROOT, capture_output=True, text=True,
                          check=False)
    assert done.stderr.splitlines()[-1] == "RuntimeError: a block was given back twice"
