"""A real worker generates transformers' tokens: alone, in any batch, in chunks, and after a preemption."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import LLAMA3, tiny_checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel

from router.request import Request
from shard.pb import shard_pb2 as pb
from tests.shard.messages import Row, concat, decode, filtered, prefill

LENGTH = 32
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope_parameters": LLAMA3},
    "qwen2": {"family": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"family": "qwen3"},
    "gpt_neox": {"family": "gpt_neox"},
    "gpt2": {"family": "gpt2"},
    "starcoder2": {"family": "starcoder2", "sliding_window": 48},
    "falcon": {"family": "falcon", "num_kv_heads": 4},
    "mixtral": {"family": "mixtral"},
    "qwen3_moe": {"family": "qwen3_moe"},
    "mistral": {"family": "mistral"},
    "gemma": {"family": "gemma"},
    "gemma2": {"family": "gemma2"},
    "gemma3": {"family": "gemma3"},
    "phi3": {"family": "phi3"},
    "cohere": {"family": "cohere", "use_qk_norm": True},
    "olmo2": {"family": "olmo2"},
}
ALWAYS = ("llama", "qwen2", "qwen3")  # tests/shard/test_families.py has quick tests of the others
PARAMS = [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.long) for name in MODELS]
SMALL, MOSTLY = 1e-3, 0.75
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # enough for four ranks


@pytest.fixture(scope="module", params=PARAMS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), **MODELS[request.param] | HEADS)


@pytest.fixture(scope="module")
def loom(model: Path) -> Iterator[Loom]:
    with Loom(model) as loom:
        yield loom


@cache
def oracle(model: Path, dtype: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype)


@cache
def answer(model: Path, prompt: tuple[int, ...], length: int = LENGTH, dtype: str = "float32") -> list[int]:
    ids = oracle(model, dtype).generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=length, pad_token_id=0)
    return [int(token) for token in ids[0, len(prompt):]]


def logits(model: Path, tokens: tuple[int, ...], dtype: str = "float32") -> torch.Tensor:
    with torch.inference_mode():
        return oracle(model, dtype)(torch.tensor([tokens])).logits[0].float()


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(2, 512, (length,), generator=generator).tolist())


def ask(length: int, seed: int = 0, **more: Any) -> Request:
    return Request(f"{length}-{seed}", prompt(length, seed), **{"max_new_tokens": LENGTH} | more)


def crowd() -> list[Request]:
    return [ask(length, max_new_tokens=LENGTH - 3 * place) for place, length in enumerate((1, 5, 16, 17, 40, 64, 100))]


def assert_right(model: Path, loom: Loom, threads: list[Thread], **settings: Any) -> None:
    for thread, heard in zip(threads, loom.weave(threads, **settings), strict=True):
        request = thread.request
        assert heard.tokens == answer(model, request.prompt, request.max_new_tokens)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 130])
def test_alone(model: Path, loom: Loom, length: int) -> None:
    assert_right(model, loom, [Thread(ask(length))])


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_in_company_that_comes_and_goes(model: Path, loom: Loom, policy: str, look_ahead: int) -> None:
    """Prompts are chunked, batches filtered and, with `pause`, joined."""
    threads = [Thread(request, arrival=2 * place) for place, request in enumerate(crowd())]
    assert_right(model, loom, threads, prefill_policy=policy, look_ahead=look_ahead, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"batching": "none"}, {"batching": "static"}, {"recompute": True}, {"batching": "static", "recompute": True}],
    ids=lambda settings: "-".join(map(str, settings.values())))
def test_however_requests_are_batched(model: Path, loom: Loom, settings: dict[str, Any]) -> None:
    """With `recompute`, one forward pass over sequences of different lengths equals a pass over each alone."""
    threads = [Thread(request, arrival=2 * place) for place, request in enumerate(crowd())]
    assert_right(model, loom, threads, **settings)


@pytest.mark.slow
def test_after_yields(model: Path, loom: Loom) -> None:
    with Loom(model, num_places=16 * 12, max_total_tokens=192) as small:
        threads = [Thread(ask(30, seed, max_new_tokens=40)) for seed in range(5)]
        assert_right(model, small, threads)


def test_after_a_loss(model: Path, loom: Loom) -> None:
    assert_right(model, loom, [Thread(request) for request in crowd()[3:]], losses=(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_shared_by_ranks(model: Path, ranks: int) -> None:
    with Loom(model, ranks) as shared:
        assert_right(model, shared, [Thread(request, arrival=place) for place, request in enumerate(crowd())])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS.keys() - ALWAYS))
def test_every_architecture_shared_by_two_ranks(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), **MODELS[name] | HEADS)
    with Loom(model, 2) as shared:
        threads = [Thread(ask(length, max_new_tokens=8), arrival=place) for place, length in enumerate((17, 70))]
        assert_right(model, shared, threads, max_batch_prefill_tokens=48)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_prompt_logprobs_for_every_cut(model: Path, ranks: int) -> None:
    asked = ask(40, max_new_tokens=1, prompt_logprobs=True)
    expected = logits(model, asked.prompt).log_softmax(-1)
    with Loom(model, ranks) as shared:
        heard = [shared.weave([Thread(asked)], max_batch_prefill_tokens=most)[0] for most in (32, 33, 48, 256)]
    assert all(each.prompt_logprobs == heard[0].prompt_logprobs for each in heard)
    assert sorted(heard[0].prompt_logprobs) == list(range(1, 40))
    for place, logprob in heard[0].prompt_logprobs.items():
        assert logprob == pytest.approx(float(expected[place - 1, asked.prompt[place]]), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_chunks_of_every_size(model: Path, ranks: int) -> None:
    """Tokens and logprobs of prompt and answer are bit-identical, and the tokens are transformers'."""
    tokens, expected = prompt(40), answer(model, prompt(40), 4)
    with Loom(model, ranks) as shared:
        told = [cut_up(shared, tokens, size) for size in range(1, 41, 1 if ranks == 1 else 5)]  # two ranks are slow
    assert all(each == told[0] for each in told)
    assert told[0][0] == expected


def cut_up(loom: Loom, tokens: tuple[int, ...], size: int) -> tuple[list[int], list[float], list[float]]:
    loom.next_epoch()
    row = Row(7, tokens, [0, 1, 2], prompt_logprobs=True)
    cuts = [(7, start, min(size, 40 - start)) for start in range(0, 40, size)]
    messages = [prefill(1, row, run=cuts[:1]), *(prefill(1, run=[cut]) for cut in cuts[1:]), *[decode(1)] * 3]
    answers = [loom.say(message, order) for order, message in enumerate(messages, 1)]
    return ([token for each in answers for token in each.tokens], [x for each in answers for x in each.logprobs],
            [x for each in answers for x in each.prompt_logprobs])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_joined_while_prompts_are_half_done(model: Path, ranks: int) -> None:
    first, second, third = prompt(40), prompt(33), prompt(20)
    with Loom(model, ranks) as shared:
        shared.next_epoch()
        said: dict[int, list[int]] = {7: [], 8: [], 9: []}
        messages = [
            prefill(1, Row(7, first, [0, 1, 2]), run=[(7, 0, 17)]),
            prefill(2, Row(8, second, [3, 4, 5]), run=[(8, 0, 30)]),
            prefill(3, Row(9, third, [6, 7])), concat(1, 2, 3),
            prefill(1, run=[(7, 17, 1), (8, 30, 3)], alongside=True),
            prefill(1, run=[(7, 18, 22)], alongside=True), decode(1), filtered(1, 7, 9), decode(1)]
        for order, message in enumerate(messages, 1):
            answered = shared.say(message, order)
            if not isinstance(answered, pb.Acknowledgement):
                for number, token in zip(answered.sequences, answered.tokens, strict=True):
                    said[number].append(token)
    for number, tokens in ((7, first), (8, second), (9, third)):
        assert said[number] == answer(model, tokens, len(said[number]))
    assert [len(tokens) for tokens in said.values()] == [3, 3, 5]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_fewer_key_heads_than_ranks(tmp_path_factory: pytest.TempPathFactory, ranks: int) -> None:
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", num_attention_heads=4, num_key_value_heads=1)
    with Loom(model, ranks) as shared:
        assert_right(model, shared, [Thread(ask(17)), Thread(ask(40), arrival=1)])


def test_a_failed_step_of_one_of_several_shards_ends_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks might wait for it for ever."""
    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    with Loom(model) as shared:
        worker, ended = shared.workers[0], []
        monkeypatch.setattr(worker, "_exit", lambda: ended.append(1))
        monkeypatch.setattr(worker._loaded.runner, "run", fail)
        for size in (1, 2):
            monkeypatch.setattr(worker._loaded.group, "size", size, raising=False)
            shared.next_epoch()
            with pytest.raises(RuntimeError):
                shared.say(prefill(1, Row(7, prompt(5), [0])), 1)
        assert len(ended) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMS)
def test_bfloat16_checkpoints_in_the_best_type_of_this_machine(tmp_path: Path, name: str) -> None:
    assert_nearly_right(tiny_checkpoint(tmp_path, dtype="bfloat16", **MODELS[name] | HEADS))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_bfloat16_where_it_is_asked_for(tmp_path: Path, ranks: int) -> None:
    model = tiny_checkpoint(tmp_path, dtype="bfloat16", **MODELS["llama"] | HEADS)
    assert_nearly_right(model, ranks, dtype="bfloat16")


def assert_nearly_right(model: Path, ranks: int = 1, **settings: Any) -> None:
    """Assert that every token is the float32 oracle's best, or closer to it than rounding moves the oracle's logits.
    With experts, rounding may select another expert and change all later tokens: there, most tokens must pass."""
    requests = crowd()[3:]
    with Loom(model, ranks, **settings) as loom:
        heard = loom.weave([Thread(request) for request in requests])
        dtype = loom.infos[0].dtype
    for request, each in zip(requests, heard, strict=True):
        near = is_near(model, request.prompt, each.tokens, dtype)
        assert near.float().mean() >= (MOSTLY if has_experts(model) else 1.0)


def is_near(model: Path, prompt: tuple[int, ...], said: list[int], dtype: str) -> torch.Tensor:
    """Return, for each generated token, whether its logit is within rounding of the oracle's best."""
    exact, rounded = (logits(model, (*prompt, *said), kind)[len(prompt) - 1:-1] for kind in ("float32", dtype))
    behind = exact.max(dim=-1).values - exact.gather(1, torch.tensor(said)[:, None])[:, 0]
    return behind <= (rounded - exact).abs().max() + SMALL


def has_experts(model: Path) -> bool:
    return "num_experts_per_tok" in (model / "config.json").read_text()
