"""Code statistics for `make stats`: sizes of files and functions, imports in functions, comments per 100 lines."""

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).parents[2]
TOP_FOLDERS = ("router", "shard", "launcher", "benchmarks", "tests")
GENERATED_FOLDER = "shard/pb"


def iter_source_files(top_folder: str) -> Iterator[Path]:
    for path in sorted((REPOSITORY_ROOT / top_folder).rglob("*.py")):
        if not path.relative_to(REPOSITORY_ROOT).as_posix().startswith(GENERATED_FOLDER):
            yield path


def find_functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def count_function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def count_inner_imports(tree: ast.AST) -> int:
    inner = {node for function in find_functions(tree) for node in ast.walk(function)}
    return sum(isinstance(node, ast.Import | ast.ImportFrom) for node in inner)


def count_comments(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def format_row(top_folder: str) -> str:
    texts = [path.read_text() for path in iter_source_files(top_folder)]
    trees = [ast.parse(text) for text in texts]
    file_lengths = [text.count("\n") for text in texts]
    function_lengths = [count_function_lines(function) for tree in trees for function in find_functions(tree)]
    total = sum(file_lengths)
    figures = (len(file_lengths), total, percentile(file_lengths, 0.5), max(file_lengths, default=0),
               len(function_lengths), round(statistics.median(function_lengths)) if function_lengths else 0,
               percentile(function_lengths, 0.95), max(function_lengths, default=0),
               sum(map(count_inner_imports, trees)), round(100 * sum(map(count_comments, texts)) / max(1, total), 1))
    return f"{top_folder:11}" + "".join(f"{figure:>11}" for figure in figures)


def iter_longest_functions() -> Iterator[str]:
    lengths_and_names = [(count_function_lines(function), path.relative_to(REPOSITORY_ROOT).as_posix(), function.name)
                         for part in TOP_FOLDERS for path in iter_source_files(part)
                         for function in find_functions(ast.parse(path.read_text()))]
    for size, path, name in sorted(lengths_and_names, reverse=True)[:5]:
        yield f"{size:5}  {path}: {name}"


def main() -> None:
    units = ("", "", "lines", "lines", "", "lines", "lines", "lines", "imports", "per 100")
    heads = ("files", "lines", "median", "longest", "functions", "median", "95 %", "longest", "inner", "comments")
    print(" " * 11 + "".join(f"{head:>11}" for head in heads))
    print(" " * 11 + "".join(f"{unit:>11}" for unit in units))
    for part in TOP_FOLDERS:
        print(format_row(part))
    print("\nlongest functions:", *iter_longest_functions(), sep="\n")


if __name__ == "__main__":
    main()
