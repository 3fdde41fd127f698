"""Tests of the demo model: its name, the answers that quickstart and card promise, and its memory use."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from support.servers.weft_process import WeftProcess, run_weft_process
from transformers import PreTrainedTokenizerFast

import launcher.demo
from launcher.demo.training.model_card import CARD_PROMPTS, MAX_ANSWER_TOKENS

REPOSITORY_ROOT = Path(__file__).parents[2]
MODEL_FOLDER = Path(launcher.demo.__file__).with_name("model")
MODEL_CARD = (MODEL_FOLDER / "README.md").read_text()
GIGABYTE = 10**9

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("demo")) as server:
        yield server


def measure_pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process in bytes, which divides shared pages among their users."""
    [kilobytes] = re.findall(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024


def test_demo_model_is_served_by_default_with_a_notice(weft: WeftProcess) -> None:
    assert weft.banner[0].startswith("weft serves weft/demo on 1 shard at ")
    assert weft.banner[1] == "  note     a demo model with 4 million parameters; its facts are often wrong\n"
    info = weft.get_info()
    assert (info["model_id"], "facts are often wrong" in info["notice"]) == ("weft/demo", True)


def test_quickstart_example_request_gets_the_documented_answer(weft: WeftProcess) -> None:
    body, answer = re.search(r"/generate -H .*?-d '(.*?)'\n```\n\n```\n(.*?)\n```",  # type: ignore[union-attr]
                             (REPOSITORY_ROOT / "docs/quickstart.md").read_text(), re.DOTALL).groups()
    request = json.loads(body)
    with weft.post_prompt("/generate", request["parameters"]["max_new_tokens"], request["inputs"]) as response:
        assert response.read().decode() == answer


def test_model_card_shows_the_answers_of_the_model(weft: WeftProcess) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(MODEL_FOLDER)
    with ThreadPoolExecutor(len(CARD_PROMPTS)) as clients:
        answers = list(clients.map(lambda prompt: weft.generate(MAX_ANSWER_TOKENS, prompt.render_prompt(tokenizer)),
                                   CARD_PROMPTS))
    assert [prompt.text for prompt, answer in zip(CARD_PROMPTS, answers, strict=True)
            if prompt.format_card_entry(answer) not in MODEL_CARD] == []


def test_model_card_contains_the_checksum_of_the_weights() -> None:
    assert sha256((MODEL_FOLDER / "model.safetensors").read_bytes()).hexdigest() in MODEL_CARD


def test_all_processes_together_use_less_than_a_gigabyte(weft: WeftProcess) -> None:
    assert weft.generate(MAX_ANSWER_TOKENS)
    pids = [weft.process.pid, *weft.find_child_pids("router"), *weft.find_child_pids("shard.rpc.server")]
    assert len(pids) == 3
    assert sum(map(measure_pss_bytes, pids)) < GIGABYTE
