"""The clock on the wall may jump by hours, so nothing waits or measures by it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
WALL_CLOCK_NAMES = {"time.time", "time.time_ns", "time_ns", "time.localtime", "time.gmtime", "localtime", "gmtime",
                    "datetime.now", "datetime.utcnow", "datetime.today"}
# What reads the wall clock, to show or compare dates.
WALL_CLOCK_READERS = {
    "launcher/adapters/sources/local.py": "whether a file may still change, by its date",
    "launcher/adapters/store.py": "the last use of an adapter, as a file's date",
    "launcher/client/adapters.py": "dates on a terminal",
    "launcher/hub/cached_models.py": "dates on a terminal",
    "router/http/lorax/routes.py": "created",
    "router/http/ollama/model_routes.py": "created_at",
    "router/http/ollama/rendering.py": "created_at",
    "router/http/openai/rendering.py": "created",
    "router/http/openai/responses_rendering.py": "created_at",
    "router/http/routes/adapters.py": "last_used",
    "router/http/routes/scoring.py": "created",
    "router/monitor/monitor.py": "the difference between both clocks",
    "router/recording/recording_file.py": "a file's name",
    "router/telemetry/server_metrics.py": "the start and loads of adapters as dates",
    "router/telemetry/spans.py": "the difference between both clocks",
    "router/text/jinja_sandbox.py": "strftime_now of templates",
    "shard/telemetry/step_instrumentation.py": "dates of spans",
}


def iter_wall_clock_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := ast.unparse(node)) in WALL_CLOCK_NAMES:
            yield name


def test_only_dates_come_from_the_wall_clock() -> None:
    readers = {path.relative_to(REPOSITORY_ROOT).as_posix() for top in ("router", "shard", "launcher")
               for path in (REPOSITORY_ROOT / top).rglob("*.py")
               if [*iter_wall_clock_names(ast.parse(path.read_text()))]}
    assert readers == set(WALL_CLOCK_READERS)


@pytest.mark.parametrize(("line", "is_wall_clock"), [
    ("time.time()", True), ("now = time.time", True), ("datetime.now(UTC)", True), ("time.monotonic()", False),
    ("loop.time()", False), ("now()", False)])
def test_wall_clock_is_found(line: str, is_wall_clock: bool) -> None:
    assert bool([*iter_wall_clock_names(ast.parse(line))]) == is_wall_clock
