"""Tests that grammars are loaded on the shards before their requests start, even after shards fail."""

from pathlib import Path
from typing import Any

import pytest
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import play_scenario

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("faults", ["die@decode:3", "step_error@decode:3", "refuse@decode:3", "die@load:1"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_grammars_are_reloaded_when_shards_are_replaced(tmp_path: Path, faults: str, ranks: int) -> None:
    async def scenario(weft: Any) -> None:
        grammars = [weft.engine.adapter_grammar_controller.loader.get_or_register("grammar", source) for source in "ab"]
        await weft.check_streams(*(make_text_request(f"prompt {index}", 12, grammar=grammars[index % 2])
                                   for index in range(6)))
        assert [sorted(rank.worker.shard_state.loaded_ids[2]) for rank in weft.ranks] == [[1, 2]] * ranks
        await weft.check_idle()
    play_scenario(scenario, tmp_path, ranks=ranks, faults=faults)


def test_grammar_unsupported_by_a_shard_fails_only_its_requests(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        grammar = weft.engine.adapter_grammar_controller.loader.get_or_register("grammar", "a")
        [refused] = await weft.collect_streams(make_text_request("a loom", 5, grammar=grammar))
        assert "takes no KIND_GRAMMAR" in str(refused.error)
        await weft.check_streams(make_text_request("a loom", 5))
    play_scenario(scenario, tmp_path, grammars=False)


def test_request_with_a_grammar_is_served_and_loads_it_once(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        answer = await weft.generate("a loom", 12, grammar={"type": "json", "value": {"type": "object"}})
        assert answer.status == 200
        assert len((await answer.json())["generated_text"]) == 12
        assert weft.rpc_counts["Load"] == 1
        again = await weft.generate("a loom", 12, grammar={"type": "json_object"})
        assert (again.status, weft.rpc_counts["Load"]) == (200, 1)
    play_scenario(scenario, tmp_path, http=True)
