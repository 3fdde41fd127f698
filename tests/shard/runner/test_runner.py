"""Non-finite values fail their own sequence, are cleared from its blocks, and affect no other sequence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import tiny_checkpoint

from router.request import Request

POISON = 500  # a token whose embedding is NaN
LENGTH = 12


@pytest.fixture(scope="module", params=[1, 2])
def loom(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    """Loom with so few blocks that they are reused again and again."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("poison"), "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with Loom(folder, request.param, num_places=16 * 12, max_total_tokens=100) as loom:
        yield loom


def ask(length: int, *, poisoned_at: int | None = None, **more: Any) -> Request:
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(2, POISON, (length,), generator=generator).tolist()
    if poisoned_at is not None:
        prompt[poisoned_at] = POISON
    return Request(f"{length} {poisoned_at}", tuple(prompt), LENGTH, **more)


@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_poisoned_sequence_fails_alone(loom: Loom, place: int) -> None:
    poisoned, others = ask(40, poisoned_at=place), [ask(20), ask(33)]
    woven = [Thread(others[0]), Thread(poisoned, arrival=1), Thread(others[1], arrival=2)]
    first, failed, second = loom.weave(woven, max_batch_prefill_tokens=32)
    assert failed.tokens == []
    assert failed.end == "the model's output was not a number"
    assert [first, second] == [loom.alone(request) for request in others]


def test_its_blocks_serve_others_afterwards(loom: Loom) -> None:
    """The whole cache is poisoned once, then read by sequences whose last block is partly unwritten."""
    loom.weave([Thread(ask(90, poisoned_at=50)), Thread(ask(80, poisoned_at=0))])
    healthy = [ask(length) for length in (5, 18, 35, 50)]
    heard = loom.weave([Thread(request) for request in healthy])
    assert all(each.end == "length" for each in heard)
    assert heard == [loom.alone(request) for request in healthy]


def test_who_leaves_before_anything_was_noticed_leaves_nothing_behind(loom: Loom) -> None:
    """The poison is in a chunk that yields no token."""
    loom.weave([Thread(ask(90, poisoned_at=10), leaves=1)], max_batch_prefill_tokens=32)
    request = ask(35)
    assert loom.weave([Thread(request)])[0] == loom.alone(request)


def test_a_loss_in_the_middle_leaves_nothing_behind(loom: Loom) -> None:
    request = ask(35)
    heard = loom.weave([Thread(ask(90, poisoned_at=80)), Thread(request)], losses=(1, 3), max_batch_prefill_tokens=32)
    assert heard[1] == loom.alone(request)


def test_prompt_logprobs_of_a_poisoned_prompt_are_not_told(loom: Loom) -> None:
    poisoned = loom.weave([Thread(ask(40, poisoned_at=35, prompt_logprobs=True))], max_batch_prefill_tokens=32)[0]
    assert all(abs(logprob) < 1e6 for logprob in poisoned.prompt_logprobs.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prompt_whose_logits_are_no_numbers_fails_with_the_chunk(tmp_path: Path, ranks: int) -> None:
    """Hidden states are finite; only a row of the head is NaN, which no token of the answer needs."""
    folder = tiny_checkpoint(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][POISON] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with Loom(folder, ranks) as broken:
        heard = broken.weave([Thread(ask(90, prompt_logprobs=True))], max_batch_prefill_tokens=32)[0]
    assert heard.end == "the model's output was not a number"
    assert heard.prompt_logprobs == {}
