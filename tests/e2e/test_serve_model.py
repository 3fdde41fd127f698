"""Tests of `weft serve` with a small real model: its tokens are those of transformers, even when shards fail."""

import json
import os
import signal
from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.concurrent_streams import NUM_STREAMS, OUTPUT_TOKENS, HealthProbe, run_disturbed_streams
from support.servers.weft_process import DEFAULT_PROMPT, WeftProcess, iter_stream_events, run_weft_process
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes that load torch, some of them twice

SHARD_MODULE = "shard.rpc.server"
# threads wait for each other on a busy machine
SERVER_ARGUMENTS = ("--max-batch-total-tokens", "65536", "--threads", "1")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def model_folder_with_end_token(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Return a model with an end token in the middle of the text that `model_folder` generates."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("ending"), "llama")
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = [1, generate_with_transformers(model_folder, DEFAULT_PROMPT, 40)[20]]
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def generate_with_transformers(folder: Path, prompt: str, length: int) -> list[int]:
    """Return the tokens that transformers generates."""
    oracle, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    output = oracle.generate(**ids, do_sample=False, max_new_tokens=length, pad_token_id=0)[0]
    return list(map(int, output[ids["input_ids"].shape[1]:]))


def decode_tokens(folder: Path, token_ids: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(folder).decode(token_ids, skip_special_tokens=True))


def check_answers_match_transformers(weft: WeftProcess, folder: Path, model_id: str, num_shard: int) -> None:
    """Check the answers against transformers, then the shutdown."""
    ids = generate_with_transformers(folder, DEFAULT_PROMPT, 40)
    assert weft.banner[0].startswith(f"weft serves {model_id} on {num_shard} shard")
    info_keys = ("model_id", "model_dtype", "model_device_type", "num_shard", "exact")
    assert [weft.get_info()[key] for key in info_keys] == [model_id, "float32", "cpu", num_shard, True]
    with weft.post_prompt("/generate", 40, details=True) as response:
        answer = json.load(response)
    assert [token["id"] for token in answer["details"]["tokens"]] == ids
    assert answer["generated_text"] == decode_tokens(folder, ids)
    *_, last = events = list(iter_stream_events(weft.post_prompt("/generate_stream", 40)))
    assert [event["token"]["id"] for event in events] == ids
    assert last["generated_text"] == decode_tokens(folder, ids)
    check_clean_shutdown(weft)


def check_clean_shutdown(weft: WeftProcess) -> None:
    weft.send_signal(signal.SIGTERM)
    code, errors = weft.wait_for_exit()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_answer_matches_transformers(model_folder: Path, tmp_path: Path) -> None:
    with run_weft_process(tmp_path, str(model_folder)) as weft:
        check_answers_match_transformers(weft, model_folder, str(model_folder), 1)


def test_model_in_the_hub_cache_is_served_under_its_name(
        model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "hub" / "models--org--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0123abcd")
    (kept / "snapshots").mkdir()
    (kept / "snapshots" / "0123abcd").symlink_to(model_folder)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with run_weft_process(tmp_path, "org/tiny", "--num-shard", "2") as weft:
        check_answers_match_transformers(weft, model_folder, "org/tiny", 2)


def test_end_token_of_the_model_ends_the_text(model_folder_with_end_token: Path, tmp_path: Path) -> None:
    ids = generate_with_transformers(model_folder_with_end_token, DEFAULT_PROMPT, 40)
    with run_weft_process(tmp_path, str(model_folder_with_end_token)) as weft, weft.post_prompt(
        "/generate", 40, details=True) as response:
        details = json.load(response)["details"]
    assert [token["id"] for token in details["tokens"]] == ids
    assert details["finish_reason"] == "eos_token"
    assert len(ids) < 40


# -- streams that continue


@pytest.mark.parametrize("num_shard", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_shard_changes_no_tokens(model_folder: Path, tmp_path: Path, num_shard: int) -> None:
    with run_weft_process(tmp_path, str(model_folder), "--num-shard", str(num_shard), *SERVER_ARGUMENTS) as weft:
        undisturbed = run_disturbed_streams(weft)
        shards = weft.find_child_pids(SHARD_MODULE)

        async def kill_shard(_: HealthProbe) -> None:
            os.kill(shards[-1], signal.SIGKILL)

        disturbed = run_disturbed_streams(weft, kill_shard)
        assert not set(shards) & set(weft.find_child_pids(SHARD_MODULE))
        check_clean_shutdown(weft)
    assert [len(events) for events in undisturbed] == [OUTPUT_TOKENS] * NUM_STREAMS
    assert disturbed == undisturbed
