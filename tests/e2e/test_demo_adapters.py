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
from support.peft_adapters import unwarned
from support.weft_process import PROMPT, Weft, serving
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

import launcher.demo

DEMO = Path(launcher.demo.__file__).parent
NAMES = ("json", "kjv", "pirate", "shout")
LENGTH = 24

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weft]:
    folder = tmp_path_factory.mktemp("demo")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        with serving(folder, "--num-shard", "2", "--max-active-adapters", "2") as found:
            yield found
    finally:
        del os.environ["XDG_CACHE_HOME"]


def said(weft: Weft, name: str | None, length: int = LENGTH, prompt: str = PROMPT) -> str:
    with weft.post("/generate", length, prompt, adapter_id=name) as answer:
        return str(json.load(answer)["generated_text"])


def by_peft(name: str | None) -> str:
    disable_progress_bar()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO / "model")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    if name is not None:
        with unwarned():
            model = PeftModel.from_pretrained(model, DEMO / "adapters" / name)
    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    ids = model.generate(input_ids=prompt, do_sample=False, max_new_tokens=LENGTH, pad_token_id=0)
    return str(tokenizer.decode(ids[0, prompt.shape[1]:], skip_special_tokens=True))


def test_each_says_what_peft_says_and_all_at_once_the_same(weft: Weft) -> None:
    names = (*NAMES, None)
    one_by_one = [said(weft, name) for name in names]
    assert one_by_one == [by_peft(name) for name in names]
    with ThreadPoolExecutor(15) as clients:
        assert list(clients.map(lambda name: said(weft, name), 3 * names)) == 3 * one_by_one


def test_when_a_shard_is_killed_requests_go_on_by_their_adapters(weft: Weft) -> None:
    alone = {name: said(weft, name, 60) for name in ("kjv", "pirate")}
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(said, weft, name, 60) for name in 2 * [*alone]]
        os.kill(weft.pids("shard.rpc.server")[0], signal.SIGKILL)
        assert [answer.result() for answer in answers] == 2 * [*alone.values()]


@pytest.mark.parametrize(("name", "reason"), [
    ("nobody", "there is no adapter"), ("../model", "leads out of"), ("/etc", "out of"),
    ("x" * 600, "`adapter_id` must")])
def test_what_is_no_adapter_of_ours_is_an_error_and_never_the_base(weft: Weft, name: str, reason: str) -> None:
    with pytest.raises(HTTPError) as error:
        said(weft, name)
    assert error.value.code in {422, 424}
    assert reason in json.load(error.value)["error"]


def test_files_that_change_are_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(DEMO / "adapters" / "pirate", tmp_path / "root" / "mine")
    with serving(tmp_path, "--adapter-root", str(tmp_path / "root"), "--preloaded-adapter-ids", "ours=mine") as weft:
        first = said(weft, "mine")
        assert said(weft, "ours") == first
        shutil.copytree(DEMO / "adapters" / "json", tmp_path / "root" / "mine", dirs_exist_ok=True)
        assert said(weft, "mine") == first, "a name stands for what it stood for"
        assert first != said(weft, None)
