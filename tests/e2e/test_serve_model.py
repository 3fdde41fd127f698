"""Tests of `weft serve` with a small real model: its tokens are those of transformers, even when shards fail."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.concurrent_streams import NUM_STREAMS, OUTPUT_TOKENS, HealthProbe, run_disturbed_streams
from support.servers.weft_process import DEFAULT_PROMPT, WeftProcess, iter_stream_events, run_weft_process
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # processes that load torch, some of them twice

ENDING_PROMPT = "Who is it?"
SHARD_MODULE = "shard.rpc.server"
# threads wait for each other on a busy machine
SERVER_ARGUMENTS = ("--max-batch-total-tokens", "65536", "--threads", "1")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(scope="module")
def model_folder_with_end_token(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """Return the model with an end token that is in the middle of what follows ENDING_PROMPT, and not in what follows
    DEFAULT_PROMPT."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("ending"), "llama")
    whole, ending = (generate_with_transformers(model_folder, prompt, 40) for prompt in (DEFAULT_PROMPT, ENDING_PROMPT))
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = [1, next(token for token in ending[15:] if token not in whole)]
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def run_server(folder: Path, *arguments: str) -> Iterator[WeftProcess]:
    """Run a server and check that it stops cleanly."""
    with run_weft_process(folder, *arguments, *SERVER_ARGUMENTS) as weft:
        yield weft
        weft.send_signal(signal.SIGTERM)
        code, errors = weft.wait_for_exit()
    assert (code, "Traceback" in errors) == (0, False), errors


@pytest.fixture(scope="module")
def weft(model_folder_with_end_token: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_server(tmp_path_factory.mktemp("weft"), str(model_folder_with_end_token)) as server:
        yield server


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long), 2])
def num_shard(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def hub_weft(model_folder: Path, num_shard: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    """Serve the model by its name from a Hub's cache, on `num_shard` shards."""
    folder = tmp_path_factory.mktemp("hub")
    kept = folder / "hub" / "models--org--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0123abcd")
    (kept / "snapshots").mkdir()
    (kept / "snapshots" / "0123abcd").symlink_to(model_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder))
        with run_server(folder, "org/tiny", "--num-shard", str(num_shard)) as server:
            yield server


def generate_with_transformers(folder: Path, prompt: str, length: int) -> list[int]:
    """Return the tokens that transformers generates."""
    oracle, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    output = oracle.generate(**ids, do_sample=False, max_new_tokens=length, pad_token_id=0)[0]
    return list(map(int, output[ids["input_ids"].shape[1]:]))


def decode_tokens(folder: Path, token_ids: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(folder).decode(token_ids, skip_special_tokens=True))


def check_answers_match_transformers(weft: WeftProcess, folder: Path, model_id: str, num_shard: int) -> None:
    ids = generate_with_transformers(folder, DEFAULT_PROMPT, 40)
    assert len(ids) == 40
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


def test_answer_matches_transformers(weft: WeftProcess, model_folder_with_end_token: Path) -> None:
    check_answers_match_transformers(weft, model_folder_with_end_token, str(model_folder_with_end_token), 1)


def test_end_token_of_the_model_ends_the_text(weft: WeftProcess, model_folder_with_end_token: Path) -> None:
    ids = generate_with_transformers(model_folder_with_end_token, ENDING_PROMPT, 40)
    with weft.post_prompt("/generate", 40, ENDING_PROMPT, details=True) as response:
        details = json.load(response)["details"]
    assert [token["id"] for token in details["tokens"]] == ids
    assert details["finish_reason"] == "eos_token"
    assert len(ids) < 40


def test_model_in_the_hub_cache_is_served_under_its_name(
        hub_weft: WeftProcess, model_folder: Path, num_shard: int) -> None:
    check_answers_match_transformers(hub_weft, model_folder, "org/tiny", num_shard)


# -- streams that continue


def test_killed_shard_changes_no_tokens(hub_weft: WeftProcess) -> None:
    undisturbed = run_disturbed_streams(hub_weft)
    shards = hub_weft.find_child_pids(SHARD_MODULE)

    async def kill_shard(_: HealthProbe) -> None:
        os.kill(shards[-1], signal.SIGKILL)

    disturbed = run_disturbed_streams(hub_weft, kill_shard)
    assert not set(shards) & set(hub_weft.find_child_pids(SHARD_MODULE))
    assert [len(events) for events in undisturbed] == [OUTPUT_TOKENS] * NUM_STREAMS
    assert disturbed == undisturbed
