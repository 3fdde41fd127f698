"""Tests of `weft serve` with a small real model: its tokens are those of transformers, even when shards fail."""

import json
import os
import signal
from pathlib import Path

import pytest
from support.concurrent_streams import LENGTH, NUM_STREAMS, Probe, hear_all
from support.small_checkpoints import tiny_checkpoint
from support.weft_process import PROMPT, Weft, serving, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes that load torch, some of them twice

SHARD = "shard.rpc.server"
SMALL = ("--max-batch-total-tokens", "65536", "--threads", "1")  # threads wait for each other on a busy machine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def ending_model(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Return a model with an end token in the middle of the text that `model` generates."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("ending"), "llama")
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = [1, expected(model, PROMPT, 40)[20]]
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def expected(folder: Path, prompt: str, length: int) -> list[int]:
    """Return the tokens that transformers generates."""
    oracle, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    output = oracle.generate(**ids, do_sample=False, max_new_tokens=length, pad_token_id=0)[0]
    return list(map(int, output[ids["input_ids"].shape[1]:]))


def text(folder: Path, ids: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(folder).decode(ids, skip_special_tokens=True))


def says_what_transformers_says(weft: Weft, folder: Path, name: str, num_shard: int) -> None:
    """Check the answers against transformers, then the shutdown."""
    ids = expected(folder, PROMPT, 40)
    assert weft.banner[0].startswith(f"weft serves {name} on {num_shard} shard")
    told = ("model_id", "model_dtype", "model_device_type", "num_shard", "exact")
    assert [weft.info()[key] for key in told] == [name, "float32", "cpu", num_shard, True]
    with weft.post("/generate", 40, details=True) as response:
        answer = json.load(response)
    assert [token["id"] for token in answer["details"]["tokens"]] == ids
    assert answer["generated_text"] == text(folder, ids)
    *_, last = events = list(tokens(weft.post("/generate_stream", 40)))
    assert [event["token"]["id"] for event in events] == ids
    assert last["generated_text"] == text(folder, ids)
    ends_well(weft)


def ends_well(weft: Weft) -> None:
    weft.signal(signal.SIGTERM)
    code, errors = weft.end()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_the_answer_is_that_of_transformers(model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(model)) as weft:
        says_what_transformers_says(weft, model, str(model), 1)


def test_a_model_in_the_cache_of_the_hub_is_served_under_its_name(
        model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "hub" / "models--org--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0123abcd")
    (kept / "snapshots").mkdir()
    (kept / "snapshots" / "0123abcd").symlink_to(model)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with serving(tmp_path, "org/tiny", "--num-shard", "2") as weft:
        says_what_transformers_says(weft, model, "org/tiny", 2)


def test_an_end_token_of_the_model_ends_the_text(ending_model: Path, tmp_path: Path) -> None:
    ids = expected(ending_model, PROMPT, 40)
    with serving(tmp_path, str(ending_model)) as weft, weft.post("/generate", 40, details=True) as response:
        details = json.load(response)["details"]
    assert [token["id"] for token in details["tokens"]] == ids
    assert details["finish_reason"] == "eos_token"
    assert len(ids) < 40


# -- streams that continue


@pytest.mark.parametrize("num_shard", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_shard_that_is_killed_changes_no_token(model: Path, tmp_path: Path, num_shard: int) -> None:
    with serving(tmp_path, str(model), "--num-shard", str(num_shard), *SMALL) as weft:
        undisturbed = hear_all(weft)
        shards = weft.pids(SHARD)

        async def kill(_: Probe) -> None:
            os.kill(shards[-1], signal.SIGKILL)

        disturbed = hear_all(weft, kill)
        assert not set(shards) & set(weft.pids(SHARD))
        ends_well(weft)
    assert [len(events) for events in undisturbed] == [LENGTH] * NUM_STREAMS
    assert disturbed == undisturbed
