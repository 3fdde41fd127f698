"""Rows with an adapter get the tokens that peft generates, in any batch."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.core_with_workers import Loom, Thread
from support.peft_adapters import tiny_adapter, with_adapter
from support.small_checkpoints import LLAMA3, tiny_checkpoint

from router.request import Request, Resource
from shard.adapters.lora_torch import Stacks
from shard.errors import Refused

LENGTH = 16
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "gpt_neox": {},
    "gpt2": {},
    "starcoder2": {},
    "falcon": {"num_kv_heads": 4},
    "mixtral": {},
    "qwen3_moe": {},
    "gemma": {},
    "gemma2": {},
    "gemma3": {},
    "phi3": {},
    "cohere": {},
    "olmo2": {},
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # enough for four ranks


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(2, 512, (length,), generator=generator).tolist())


@cache
def answer(base: Path, adapter: Path | None, prompt: tuple[int, ...], length: int) -> list[int]:
    model = with_adapter(base, adapter)
    ids = model.generate(input_ids=torch.tensor([prompt]), do_sample=False, max_new_tokens=length, pad_token_id=0)
    return [int(token) for token in ids[0, len(prompt):]]


def ask(number: int, length: int, **more: Any) -> Request:
    adapter = Resource("adapter", number) if number else None
    return Request(f"{number}-{length}", prompt(length, number), adapter=adapter, **{"max_new_tokens": LENGTH} | more)


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param, **FAMILIES[request.param] | HEADS)


def says_what_peft_says(base: Path, adapter: Path, **settings: Any) -> None:
    with Loom(base, **{"adaptable": True} | settings) as loom:
        loom.load_adapter(1, adapter)
        threads = [Thread(ask(1, 30)), Thread(ask(0, 30), 2), Thread(ask(1, 5), 3)]
        for thread, heard in zip(threads, loom.compare(threads), strict=True):
            wearing, request = adapter if thread.request.adapter else None, thread.request
            assert heard.tokens == answer(base, wearing, request.prompt, request.max_new_tokens)


@pytest.mark.slow
def test_it_says_what_peft_says(base: Path) -> None:
    says_what_peft_says(base, tiny_adapter(base, r=4))


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_it(base: Path, ranks: int) -> None:
    says_what_peft_says(base, tiny_adapter(base, r=4), ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "falcon", "mixtral", "phi3"])
def test_two_ranks_share_products_of_every_kind(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tiny_checkpoint(tmp_path_factory.getbasetemp(), family, **FAMILIES[family] | HEADS)
    says_what_peft_says(base, tiny_adapter(base, r=4), ranks=2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", **FAMILIES["llama"] | HEADS)


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "scaled": {"r": 4, "lora_alpha": 1},
    "rank-stabilised": {"r": 8, "lora_alpha": 5, "use_rslora": True},
    "only some products": {"r": 4, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "only one layer": {"r": 4, "target_modules": ALL, "layers_to_transform": [1]},
    "a pattern": {"r": 4, "target_modules": r".*layers\.0\.(self_attn|mlp)\.(q_proj|up_proj)"},
    "ranks and scales by module": {
        "r": 4, "target_modules": ALL,
        "rank_pattern": {"q_proj": 8, r"layers\.1\.mlp\.up_proj": 2, "layers.0.mlp.up_proj": 6},
        "alpha_pattern": {"mlp.down_proj": 3, r".*\.v_proj": 16}},
    "the embedding": {"r": 4, "target_modules": ["embed_tokens", "o_proj"]},
    "the head": {"r": 4, "target_modules": ["lm_head", "k_proj"]},
    "another head": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "another embedding": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "both": {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "stored in half": {"r": 4, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_what_its_config_says_counts(llama: Path, config: dict[str, Any]) -> None:
    says_what_peft_says(llama, tiny_adapter(llama, **config))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["only some products", "the embedding", "the head", "both"])
def test_two_ranks_do_what_its_config_says(llama: Path, name: str) -> None:
    says_what_peft_says(llama, tiny_adapter(llama, **CONFIGS[name]), ranks=2)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ["target_modules", "modules_to_save"])
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_where_the_head_is_the_embedding_each_is_changed_alone(
        tmp_path_factory: pytest.TempPathFactory, name: str, module: str, ranks: int) -> None:
    base = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", tie_word_embeddings=True, **HEADS)
    modules = {"target_modules": ["q_proj"]} | {name: [module]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft advises against it
        says_what_peft_says(base, tiny_adapter(base, r=4, **modules), ranks=ranks)


RANKS = (4, 8, 12, 16, 24, 32, 48, 64)


@pytest.fixture(scope="module")
def eight(llama: Path) -> list[Path]:
    """Adapters of all ranks, some of them for few modules."""
    targets = (ALL, ALL, ["q_proj", "v_proj"], ["o_proj", "down_proj"])
    return [tiny_adapter(llama, seed=number, r=rank, target_modules=targets[number % len(targets)])
            for number, rank in enumerate(RANKS, 1)]


def company() -> list[Thread]:
    """Return requests for the base model and for each adapter, several of them for two of the adapters."""
    numbers = [0, *range(1, 9), 3, 3, 7, 0]
    return [Thread(ask(number, 20 + 7 * place % 40), place // 4) for place, number in enumerate(numbers)]


def all_right(llama: Path, eight: list[Path], loom: Loom, **settings: Any) -> None:
    """Assert that every request gets the same bits as alone, and peft's tokens."""
    for number, adapter in enumerate(eight, 1):
        loom.load_adapter(number, adapter)
    threads = company()
    for thread, heard in zip(threads, loom.compare(threads, **settings), strict=True):
        request = thread.request
        wearing = eight[request.adapter.id - 1] if request.adapter else None
        assert heard.tokens == answer(llama, wearing, request.prompt, request.max_new_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("settings", [
    {}, {"max_batch_prefill_tokens": 48}, {"prefill_policy": "pause", "look_ahead": 1}, {"losses": (3, 9)},
], ids=["mixed", "chunked", "paused", "lost"])
def test_eight_adapters_and_the_base_in_one_step(
        llama: Path, eight: list[Path], ranks: int, settings: dict[str, Any]) -> None:
    with Loom(llama, ranks, adaptable=True) as loom:
        all_right(llama, eight, loom, **settings)


@pytest.mark.slow
def test_eight_adapters_on_two_ranks(llama: Path, eight: list[Path]) -> None:
    with Loom(llama, 2, adaptable=True) as loom:
        all_right(llama, eight, loom, max_batch_prefill_tokens=48, losses=(9,))


@pytest.mark.slow
def test_who_yields_goes_on_by_its_adapter(llama: Path, eight: list[Path]) -> None:
    with Loom(llama, adaptable=True, num_places=16 * 16, max_total_tokens=192) as small:
        all_right(llama, eight, small)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {"dtype": "bfloat16"}, pytest.param({"dtype": "bfloat16", "ranks": 2}, marks=pytest.mark.long),
    {"quantize": "int8"},
], ids=["bfloat16", "bfloat16 on two ranks", "int8"])
def test_company_changes_no_bit(llama: Path, eight: list[Path], settings: dict[str, Any]) -> None:
    with Loom(llama, adaptable=True, **settings) as loom:
        for number, adapter in enumerate(eight, 1):
            loom.load_adapter(number, adapter)
        loom.compare(company())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "mixtral", "phi3", "gemma2"])
def test_company_changes_no_bit_in_other_models(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tiny_checkpoint(tmp_path_factory.getbasetemp(), family, **FAMILIES[family] | HEADS)
    with Loom(base, adaptable=True) as loom:
        for number in (1, 2, 3):
            loom.load_adapter(number, tiny_adapter(base, seed=number, r=4 * number))
        loom.compare([Thread(ask(number, 10 + number), number) for number in (0, 1, 2, 3, 1, 0)])


def test_logprobs_of_a_prompt_are_those_of_its_adapter(llama: Path) -> None:
    adapter = tiny_adapter(llama, r=4, target_modules=["lm_head", "q_proj"])
    with Loom(llama, adaptable=True) as loom:
        loom.load_adapter(1, adapter)
        request = ask(1, 30, prompt_logprobs=True)
        heard, _ = loom.weave([Thread(request), Thread(ask(0, 30))])
    with torch.inference_mode():
        logits = with_adapter(llama, adapter)(input_ids=torch.tensor([request.prompt])).logits[0]
    expected = logits.log_softmax(-1)[range(29), request.prompt[1:]]
    torch.testing.assert_close(torch.tensor([heard.prompt_logprobs[place] for place in range(1, 30)]), expected,
                               atol=1e-3, rtol=1e-3)


def test_one_that_was_unloaded_is_gone_and_its_number_can_be_another(llama: Path, eight: list[Path]) -> None:
    with Loom(llama, adaptable=True) as loom:
        loom.load_adapter(1, eight[0])
        loom.unload_adapter(1)
        assert list(loom.everywhere("info")[0].loaded_adapters) == []
        loom.load_adapter(1, eight[1])
        heard = loom.weave([Thread(ask(1, 20))])[0]
    assert heard.tokens == answer(llama, eight[1], prompt(20, 1), LENGTH)


def test_one_for_which_there_is_no_memory_leaves_nothing_behind(
        llama: Path, eight: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last part of the adapter does not fit."""
    put, count = Stacks.put, iter(range(13, -1, -1))

    def put_until_it_is_full(self: Stacks, *arguments: Any) -> int:
        if next(count):
            return put(self, *arguments)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes.\nMore")

    with Loom(llama, adaptable=True) as loom:
        with monkeypatch.context() as patch:
            patch.setattr(Stacks, "put", put_until_it_is_full)
            with pytest.raises(Refused, match=r"there is no room for the adapter in .*tried to allocate 5 bytes"):
                loom.load_adapter(1, eight[0])
        assert list(loom.everywhere("info")[0].loaded_adapters) == []
        loom.load_adapter(1, eight[1])
        assert loom.weave([Thread(ask(1, 20))])[0].tokens == answer(llama, eight[1], prompt(20, 1), LENGTH)


def test_without_adapters_none_is_taken(llama: Path, eight: list[Path]) -> None:
    with Loom(llama) as loom:
        assert not loom.infos[0].adapters
        with pytest.raises(Refused, match="this shard takes no KIND_ADAPTER"):
            loom.load_adapter(1, eight[0])
