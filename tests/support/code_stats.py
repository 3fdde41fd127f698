"""Code statistics for `make stats`: sizes of files and functions, imports in functions, comments per 100 lines."""

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("router", "shard", "launcher", "benchmarks", "tests")
GENERATED = "shard/pb"


def sources(part: str) -> Iterator[Path]:
    for path in sorted((ROOT / part).rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(GENERATED):
            yield path


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def inner_imports(tree: ast.AST) -> int:
    inner = {node for function in functions(tree) for node in ast.walk(function)}
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in inner)


def comments(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def row(part: str) -> str:
    texts = [path.read_text() for path in sources(part)]
    trees = [ast.parse(text) for text in texts]
    files = [text.count("\n") for text in texts]
    sizes = [length(function) for tree in trees for function in functions(tree)]
    total = sum(files)
    figures = (len(files), total, percentile(files, 0.5), max(files, default=0), len(sizes),
               round(statistics.median(sizes)) if sizes else 0, percentile(sizes, 0.95), max(sizes, default=0),
               sum(map(inner_imports, trees)), round(100 * sum(map(comments, texts)) / max(1, total), 1))
    return f"{part:11}" + "".join(f"{figure:>11}" for figure in figures)


def longest() -> Iterator[str]:
    found = [(length(function), path.relative_to(ROOT).as_posix(), function.name)
             for part in PARTS for path in sources(part) for function in functions(ast.parse(path.read_text()))]
    for size, path, name in sorted(found, reverse=True)[:5]:
        yield f"{size:5}  {path}: {name}"


def main() -> None:
    units = ("", "", "lines", "lines", "", "lines", "lines", "lines", "imports", "per 100")
    heads = ("files", "lines", "median", "longest", "functions", "median", "95 %", "longest", "inner", "comments")
    print(" " * 11 + "".join(f"{head:>11}" for head in heads))
    print(" " * 11 + "".join(f"{unit:>11}" for unit in units))
    for part in PARTS:
        print(row(part))
    print("\nlongest functions:", *longest(), sep="\n")


if __name__ == "__main__":
    main()
