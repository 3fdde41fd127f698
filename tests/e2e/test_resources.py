"""Tests that grammars are loaded on the shards before their requests start, even after shards fail."""

from pathlib import Path
from typing import Any

import pytest
from support.expected_streams import ask
from support.in_process_server import play

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("faults", ["die@decode:3", "step_error@decode:3", "refuse@decode:3", "die@load:1"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_grammars_come_back_with_the_shards(tmp_path: Path, faults: str, ranks: int) -> None:
    async def story(weft: Any) -> None:
        grammars = [weft.engine.supply.resources.of("grammar", source) for source in "ab"]
        await weft.hear_right(*(ask(f"prompt {index}", 12, grammar=grammars[index % 2]) for index in range(6)))
        assert [sorted(rank.worker.ledger.loaded[2]) for rank in weft.ranks] == [[1, 2]] * ranks
        await weft.check_idle()
    play(story, tmp_path, ranks=ranks, faults=faults)


def test_a_grammar_that_a_shard_does_not_take_fails_those_who_need_it(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        [refused] = await weft.hear(ask("a loom", 5, grammar=weft.engine.supply.resources.of("grammar", "a")))
        assert "takes no KIND_GRAMMAR" in str(refused.error)
        await weft.hear_right(ask("a loom", 5))
    play(story, tmp_path, grammars=False)


def test_a_request_with_a_grammar_is_served_and_told_of(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        answer = await weft.generate("a loom", 12, grammar={"type": "json", "value": {"type": "object"}})
        assert answer.status == 200
        assert len((await answer.json())["generated_text"]) == 12
        assert weft.calls["Load"] == 1
        again = await weft.generate("a loom", 12, grammar={"type": "json_object"})
        assert (again.status, weft.calls["Load"]) == (200, 1)
    play(story, tmp_path, http=True)
