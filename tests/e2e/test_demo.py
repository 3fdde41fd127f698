"""Tests of the demo model: its name, the answers that README and card promise, and its memory use."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from support.weft_process import Weft, serving
from transformers import PreTrainedTokenizerFast

import launcher.demo
from launcher.demo.training.card import LONGEST, PROMPTS

ROOT = Path(__file__).parents[2]
MODEL = Path(launcher.demo.__file__).with_name("model")
CARD = (MODEL / "README.md").read_text()
GIGABYTE = 10**9

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weft]:
    with serving(tmp_path_factory.mktemp("demo")) as found:
        yield found


def memory(pid: int) -> int:
    """Return the proportional set size of a process in bytes, which divides shared pages among their users."""
    [kilobytes] = re.findall(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024


def test_without_a_name_the_model_that_comes_with_weft_is_served_and_says_what_it_is(weft: Weft) -> None:
    assert weft.banner[0].startswith("weft serves weft/demo on 1 shard at ")
    assert weft.banner[1] == "  note     a demo model with 4 million parameters; its facts are often wrong\n"
    told = weft.info()
    assert (told["model_id"], "facts are often wrong" in told["notice"]) == ("weft/demo", True)


def test_the_first_request_of_the_readme_is_answered_as_it_says(weft: Weft) -> None:
    body, answer = re.search(r"generate \\\n.*?-d '(.*?)'\n```\n\n```json\n(.*?)\n```",  # type: ignore[union-attr]
                             (ROOT / "README.md").read_text(), re.DOTALL).groups()
    asked = json.loads(body)
    with weft.post("/generate", asked["parameters"]["max_new_tokens"], asked["inputs"]) as response:
        assert response.read().decode() == answer


def test_the_card_tells_what_the_model_answers(weft: Weft) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL)
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        answers = list(clients.map(lambda prompt: weft.generate(LONGEST, prompt.rendered(tokenizer)), PROMPTS))
    assert [prompt.said for prompt, answer in zip(PROMPTS, answers, strict=True)
            if prompt.entry(answer) not in CARD] == []


def test_the_card_tells_the_checksum_of_the_weights() -> None:
    assert sha256((MODEL / "model.safetensors").read_bytes()).hexdigest() in CARD


def test_all_of_it_takes_less_than_a_gigabyte(weft: Weft) -> None:
    assert weft.generate(LONGEST)
    pids = [weft.process.pid, *weft.pids("router"), *weft.pids("shard.rpc.server")]
    assert len(pids) == 3
    assert sum(map(memory, pids)) < GIGABYTE
