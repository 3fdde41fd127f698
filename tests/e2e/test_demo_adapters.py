"""Tests of the demo model's adapters with all processes of a server.

Adapters are fetched, loaded, merged and kept when a shard is killed, and their text is that of peft.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError

import pytest
import torch
from peft import PeftModel
from support.checkpoints.peft_adapters import suppress_peft_warnings
from support.servers.weft_process import DEFAULT_PROMPT, WeftProcess, run_weft_process
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

import launcher.demo

DEMO_FOLDER = Path(launcher.demo.__file__).parent
ADAPTER_NAMES = ("json", "kjv", "pirate", "shout")
MAX_NEW_TOKENS = 24

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def adapter_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the demo model's adapters, and of one of them under the name `mine`."""
    root = tmp_path_factory.mktemp("root") / "adapters"
    shutil.copytree(DEMO_FOLDER / "adapters", root)
    shutil.copytree(root / "pirate", root / "mine")
    return root


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.long)])
def weft(request: pytest.FixtureRequest, adapter_root: Path,
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with run_weft_process(folder, "--num-shard", request.param, "--max-active-adapters", "2", "--adapter-root",
                              str(adapter_root), "--preloaded-adapter-ids", "ours=mine") as server:
            yield server


def generate_text(weft: WeftProcess, adapter_name: str | None, max_new_tokens: int = MAX_NEW_TOKENS,
                  prompt: str = DEFAULT_PROMPT) -> str:
    with weft.post_prompt("/generate", max_new_tokens, prompt, adapter_id=adapter_name) as answer:
        return str(json.load(answer)["generated_text"])


def generate_text_with_peft(adapter_name: str | None) -> str:
    disable_progress_bar()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO_FOLDER / "model")
    model = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER / "model", dtype=torch.float32)
    if adapter_name is not None:
        with suppress_peft_warnings():
            model = PeftModel.from_pretrained(model, DEMO_FOLDER / "adapters" / adapter_name)
    prompt = tokenizer(DEFAULT_PROMPT, return_tensors="pt").input_ids
    ids = model.generate(input_ids=prompt, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0)
    return str(tokenizer.decode(ids[0, prompt.shape[1]:], skip_special_tokens=True))


def test_adapter_texts_match_peft_alone_and_concurrently(weft: WeftProcess) -> None:
    names = (*ADAPTER_NAMES, None)
    one_by_one = [generate_text(weft, name) for name in names]
    assert one_by_one == [generate_text_with_peft(name) for name in names]
    with ThreadPoolExecutor(15) as clients:
        assert list(clients.map(lambda name: generate_text(weft, name), 3 * names)) == 3 * one_by_one


def test_requests_keep_their_adapters_when_a_shard_is_killed(weft: WeftProcess) -> None:
    alone = {name: generate_text(weft, name, 60) for name in ("kjv", "pirate")}
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(generate_text, weft, name, 60) for name in 2 * [*alone]]
        os.kill(weft.find_child_pids("shard.rpc.server")[0], signal.SIGKILL)
        assert [answer.result() for answer in answers] == 2 * [*alone.values()]


@pytest.mark.parametrize(("name", "reason"), [
    ("nobody", "there is no adapter"), ("../model", "leads out of"), ("/etc", "out of"),
    ("x" * 600, "`adapter_id` must")])
def test_invalid_adapter_names_are_errors_and_never_use_the_base_model(weft: WeftProcess, name: str,
                                                                       reason: str) -> None:
    with pytest.raises(HTTPError) as error:
        generate_text(weft, name)
    assert error.value.code in {422, 424}
    assert reason in json.load(error.value)["error"]


def test_adapter_name_keeps_its_first_version_when_its_files_change(weft: WeftProcess, adapter_root: Path) -> None:
    first = generate_text(weft, "mine")
    assert generate_text(weft, "ours") == first
    shutil.copytree(DEMO_FOLDER / "adapters" / "json", adapter_root / "mine", dirs_exist_ok=True)
    assert generate_text(weft, "mine") == first, "a name stands for what it stood for"
    assert first != generate_text(weft, None)
    shutil.copytree(DEMO_FOLDER / "adapters" / "pirate", adapter_root / "mine", dirs_exist_ok=True)
